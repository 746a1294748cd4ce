"""How `warmlog log dump` shows keys and values: text, JSON, big-endian numbers, as Kafka's decoders of these names."""

import base64
from collections.abc import Callable
from typing import Literal

Decoder = Callable[[bytes], str]
RecordDecoder = Callable[[bytes | None, bytes | None], tuple[str | None, str | None]]
"""Returns a record's key and value as text; None stays None."""


def decoder_of(keys: Decoder, values: Decoder) -> RecordDecoder:
    """Return what decodes keys and values each in its way."""
    return lambda key, value: (None if key is None else keys(key), None if value is None else values(value))


def decode_string(data: bytes) -> str:
    """Decode UTF-8; other bytes become U+FFFD."""
    return data.decode("utf-8", errors="replace")


decode_strings = decoder_of(decode_string, decode_string)


def _number_of(size_bytes: int) -> Decoder:
    def decode(data: bytes) -> str:
        if len(data) != size_bytes:
            return _undecoded(data)
        return str(int.from_bytes(data, "big", signed=True))

    return decode


def _as_json(protocol: Literal["json", "msgpack"]) -> Decoder:
    """Format as one line of JSON without spaces; bytes in msgpack become base64."""

    def decode(data: bytes) -> str:
        import msgspec

        try:
            parsed = msgspec.json.decode(data) if protocol == "json" else msgspec.msgpack.decode(data)
            return msgspec.json.encode(parsed).decode()
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError):
            return _undecoded(data)

    return decode


def _undecoded(data: bytes) -> str:
    return "0x" + data.hex()


DECODERS: dict[str, Decoder] = {
    "string": decode_string,
    "integer": _number_of(4),
    "long": _number_of(8),
    "hex": lambda data: data.hex(),
    "base64": lambda data: base64.b64encode(data).decode(),
    "json": _as_json("json"),
    "msgpack": _as_json("msgpack"),
}
"""The values of --key-decoder and --value-decoder. Bytes that one cannot decode are hex after 0x."""
