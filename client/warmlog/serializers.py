"""Ready-made serializers, for `key_serializer` and `value_serializer` of a Producer."""

import msgspec

_encoder = msgspec.json.Encoder()


def json(item: object) -> bytes:
    """Encode as compact JSON in UTF-8; a datetime as ISO text, a dataclass as an object. TypeError for other types."""
    return _encoder.encode(item)


def text(item: str) -> bytes:
    """Encode text in UTF-8. TypeError for another type."""
    if not isinstance(item, str):
        raise TypeError(f"text must be str, not {type(item).__name__}")
    return item.encode()
