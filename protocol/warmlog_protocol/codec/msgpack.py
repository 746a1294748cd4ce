"""The encoder of messages and headers."""

import msgspec


def _plain(item: object) -> str:
    """Return an instance of a subclass of str, such as numpy.str_, as a str: msgspec encodes no subclass."""
    if isinstance(item, str):
        return str.__str__(item)
    raise TypeError(f"Encoding objects of type {type(item).__qualname__} is unsupported")


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
