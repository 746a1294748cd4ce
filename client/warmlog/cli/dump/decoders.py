"""How `warmlog log dump` shows keys and values: big-endian numbers and text, as Kafka's decoders of these names."""

from collections.abc import Callable
from enum import StrEnum

Decoder = Callable[[bytes], str]


class DecoderName(StrEnum):
    """What may be asked for."""

    STRING = "string"
    INTEGER = "integer"
    LONG = "long"
    HEX = "hex"


def decoder_named(name: DecoderName) -> Decoder:
    """The decoder; numbers of another length than theirs are shown as hex."""
    return _DECODERS[name]


def decode_string(data: bytes) -> str:
    """UTF-8; what is none becomes U+FFFD."""
    return data.decode("utf-8", errors="replace")


def _number_of(size_bytes: int) -> Decoder:
    def decode(data: bytes) -> str:
        if len(data) != size_bytes:
            return "0x" + data.hex()
        return str(int.from_bytes(data, "big", signed=True))

    return decode


_DECODERS: dict[DecoderName, Decoder] = {
    DecoderName.STRING: decode_string,
    DecoderName.INTEGER: _number_of(4),
    DecoderName.LONG: _number_of(8),
    DecoderName.HEX: lambda data: data.hex(),
}
