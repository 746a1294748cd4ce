"""Kafka's variable-length integers: zigzag, then groups of seven bits, the lowest first, bit 7 set on all but the last.

Zigzag puts the sign into bit 0, so that small negative numbers stay short: 0, -1, 1, -2 become 0, 1, 2, 3. Kafka's
varint holds 32 bits and its varlong 64; for numbers that fit both, the bytes are the same.
"""

from warmlog_protocol.errors import CorruptBatch

_MAX_BYTES = 10
_ONE_BYTE = [bytes((byte,)) for byte in range(0x80)]


def pack_varint(value: int) -> bytes:
    """Return `value`, which must fit in 64 bits, as a zigzag varint."""
    zigzag = value << 1 if value >= 0 else ~(value << 1)
    if zigzag < 0x80:
        return _ONE_BYTE[zigzag]
    if zigzag < 0x4000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7))
    groups = bytearray()
    while zigzag >= 0x80:
        groups.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    groups.append(zigzag)
    return bytes(groups)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the number at `position` and where it ends. CorruptBatch past 64 bits, IndexError if `data` ends."""
    zigzag = data[position]
    position += 1
    if zigzag >= 0x80:
        zigzag, position = read_more(data, position, zigzag)
    return zigzag >> 1 ^ -(zigzag & 1), position


def read_more(data: bytes | memoryview, position: int, first: int) -> tuple[int, int]:
    """Return the number, still in zigzag, whose first byte was `first` with bit 7 set, and the position after it.

    CorruptBatch past 64 bits, IndexError if `data` ends.
    """
    group = data[position]
    position += 1
    zigzag = first & 0x7F | (group & 0x7F) << 7
    if group < 0x80:
        return zigzag, position
    for shift in range(14, 7 * _MAX_BYTES, 7):
        group = data[position]
        position += 1
        zigzag |= (group & 0x7F) << shift
        if group < 0x80 and not zigzag >> 64:
            return zigzag, position
    raise CorruptBatch(f"integer before byte {position} does not fit 64 bits")
