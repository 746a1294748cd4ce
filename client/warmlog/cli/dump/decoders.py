"""How `warmlog log dump` shows keys and values: text, JSON, big-endian numbers, as Kafka's decoders of these names."""

import base64
from collections.abc import Callable
from enum import StrEnum

import msgspec

Decoder = Callable[[bytes], str]
RecordDecoder = Callable[[bytes | None, bytes | None], tuple[str | None, str | None]]
"""Returns a record's key and value as text; None stays None."""


class DecoderName(StrEnum):
    """The values of --key-decoder and --value-decoder."""

    STRING = "string"
    INTEGER = "integer"
    LONG = "long"
    HEX = "hex"
    BASE64 = "base64"
    JSON = "json"
    MSGPACK = "msgpack"


def decoder_of(keys: Decoder, values: Decoder) -> RecordDecoder:
    """Return what decodes keys and values each in its way."""
    return lambda key, value: (None if key is None else keys(key), None if value is None else values(value))


def decoder_named(name: DecoderName) -> Decoder:
    """Return the decoder; it shows bytes that it cannot decode (another length, not JSON) as hex after 0x."""
    return _DECODERS[name]


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


def _as_json(parse: Callable[[bytes], object]) -> Decoder:
    """Format as one line of JSON without spaces; bytes in msgpack become base64."""

    def decode(data: bytes) -> str:
        try:
            return msgspec.json.encode(parse(data)).decode()
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError):
            return _undecoded(data)

    return decode


def _undecoded(data: bytes) -> str:
    return "0x" + data.hex()


_DECODERS: dict[DecoderName, Decoder] = {
    DecoderName.STRING: decode_string,
    DecoderName.INTEGER: _number_of(4),
    DecoderName.LONG: _number_of(8),
    DecoderName.HEX: lambda data: data.hex(),
    DecoderName.BASE64: lambda data: base64.b64encode(data).decode(),
    DecoderName.JSON: _as_json(msgspec.json.decode),
    DecoderName.MSGPACK: _as_json(msgspec.msgpack.decode),
}
