"""What can be wrong with a frame: each mutation takes a valid request and gives bytes."""

from collections.abc import Callable
from random import Random
from struct import Struct

import msgspec
from crc32c import crc32c

from faults.fuzzing.bodies import any_bomb, changed_body
from faults.fuzzing.corpus import HEAD, Parts, pack, with_batch
from warmlog_protocol.batch.header import CRC_START

Mutation = Callable[[Parts, Random], bytes]

INTEGERS = (
    -1,
    -2,
    0,
    1,
    127,
    128,
    2**15,
    2**31 - 1,
    2**31,
    -(2**31) - 1,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**63),
)
TEXTS = ("", ".", "..", "a" * 300, "x" * 70_000, "../../etc", "naïve", "\0", "\ud7ff", "fuzzed")
DEPTHS = (5, 100, 3000, 50_000)
NESTS = (b"\x91", b"\x81\xa1a", b"\x81\x01", b"\xdc\x00\x01")
WIDE_MAPS = (
    b"\xde\xff\xff" + b"".join(b"\xcd" + key.to_bytes(2, "big") + b"\xc0" for key in range(0xFFFF)),
    b"\xdf\x00\x01\x00\x00" + b"\xa1k\xa1v" * 0x10000,
)
WIDE_SHARE = 0.1
BOMB_SHARE = 0.02
_CRC = Struct(">I")
_CRC_POSITION = 17


def flip_bytes(parts: Parts, luck: Random) -> bytes:
    """A few bytes are others."""
    frame = bytearray(pack(parts))
    for _ in range(luck.randint(1, 8)):
        frame[luck.randrange(len(frame))] = luck.randrange(256)
    return bytes(frame)


def lie_about_sizes(parts: Parts, luck: Random) -> bytes:
    """The sizes at the front do not belong to what follows."""
    frame = pack(parts)
    size, header_size = HEAD.unpack_from(frame)
    sizes = [0, 1, 3, 4, 5, size - 1, size + 1, size * 2, header_size + 4, 2**16, 2**24, 2**31 - 1, 2**32 - 1]
    if luck.random() < 0.5:
        size = max(0, luck.choice(sizes))
    else:
        header_size = max(0, luck.choice(sizes))
    return HEAD.pack(size, header_size) + frame[HEAD.size :]


def cut_off(parts: Parts, luck: Random) -> bytes:
    """The frame ends too soon, and says so or not."""
    frame = pack(parts)
    cut = frame[: luck.randrange(1, len(frame))]
    if len(cut) > HEAD.size and luck.random() < 0.5:
        header_size = HEAD.unpack_from(frame)[1]
        cut = HEAD.pack(len(cut) - 4, min(header_size, len(cut) - HEAD.size)) + cut[HEAD.size :]
    return cut


def append_bytes(parts: Parts, luck: Random) -> bytes:
    """More payload than the header speaks of."""
    return pack(parts._replace(payload=parts.payload + luck.randbytes(luck.choice((1, 61, 5000)))))


def change_field(parts: Parts, luck: Random) -> bytes:
    """One value of the header, however deep, is another or of another type."""
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(parts.fields))
    _change_inside(fields, luck)
    return pack(parts._replace(fields=fields))


def change_field_count(parts: Parts, luck: Random) -> bytes:
    """Fields are missing at the end, or there are more than anybody knows."""
    fields = list(parts.fields)
    if luck.random() < 0.5:
        del fields[luck.randrange(len(fields)) :]
    else:
        fields += [strange_value(luck) for _ in range(luck.choice((1, 3, 40)))]
    return pack(parts._replace(fields=fields))


def repeat_items(parts: Parts, luck: Random) -> bytes:
    """A list has many more items than anybody would send."""
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(parts.fields))
    lists = [field for field in fields if isinstance(field, list) and field]
    if lists:
        chosen = luck.choice(lists)
        chosen *= luck.choice((2, 50, 2000))
    return pack(parts._replace(fields=fields))


def announce_items(parts: Parts, luck: Random) -> bytes:
    """Heads of arrays, maps, texts and extensions that announce billions of things, and few bytes behind them."""
    header = bytearray(msgspec.msgpack.encode(parts.fields))
    head = luck.choice((b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9")) + luck.choice((b"\xff" * 4, b"\x00\xff\xff\xff"))
    position = luck.randrange(1, len(header))
    header[position : position + luck.randint(0, 5)] = head
    return HEAD.pack(4 + len(header) + len(parts.payload), len(header)) + bytes(header) + parts.payload


def change_batch(parts: Parts, luck: Random) -> bytes:
    """Bytes of the batch are others, under a checksum that is right."""
    if len(parts.payload) <= CRC_START:
        return change_field(parts, luck)
    batch = bytearray(parts.payload)
    for _ in range(luck.randint(1, 4)):
        position = luck.choice((luck.randrange(61), luck.randrange(len(batch))))
        batch[position] = luck.choice((0, 1, 0x7F, 0x80, 0xFF, luck.randrange(256)))
    if luck.random() < 0.8:
        _CRC.pack_into(batch, _CRC_POSITION, crc32c(bytes(batch[CRC_START:])))
    return pack(parts._replace(payload=bytes(batch)))


def change_body(parts: Parts, luck: Random) -> bytes:
    """The batch's body is not what its header says, under a checksum that is right."""
    if len(parts.payload) <= CRC_START:
        return change_version(parts, luck)
    return pack(with_batch(parts, changed_body(parts.payload, luck)))


def send_bomb(parts: Parts, luck: Random) -> bytes:
    """A small batch that becomes a hundred megabytes; seldom, for it takes the broker its time."""
    if len(parts.payload) <= CRC_START or luck.random() > BOMB_SHARE:
        return nest(parts, luck)
    return pack(with_batch(parts, any_bomb(luck)))


def change_version(parts: Parts, luck: Random) -> bytes:
    """An API or a version that nobody knows, or a correlation id out of bounds."""
    fields = list(parts.fields)
    place = luck.randrange(3)
    fields[place] = luck.choice((*INTEGERS, 2**64 - 1, 7, 42, 1001, -5))
    return pack(parts._replace(fields=fields))


def nest(parts: Parts, luck: Random) -> bytes:
    """Arrays and maps in each other, deeper than anybody reads, or a map with more entries than anybody needs."""
    fields = list(parts.fields)
    deep = luck.choice(NESTS) * luck.choice(DEPTHS) + b"\xc0"
    bomb = luck.choice(WIDE_MAPS) if luck.random() < WIDE_SHARE else deep
    fields[luck.randrange(3, len(fields)) if len(fields) > 3 else 0] = msgspec.Raw(bomb)
    return pack(parts._replace(fields=fields))


def garbage(parts: Parts, luck: Random) -> bytes:
    """Nothing of a frame."""
    return luck.choice((b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", luck.randbytes(64)))


MUTATIONS: tuple[Mutation, ...] = (
    flip_bytes,
    lie_about_sizes,
    cut_off,
    append_bytes,
    change_field,
    change_field,
    change_field_count,
    repeat_items,
    announce_items,
    change_batch,
    change_batch,
    change_body,
    change_body,
    change_version,
    nest,
    send_bomb,
    garbage,
)


def strange_value(luck: Random) -> object:
    """Something that no field expects."""
    kind = luck.randrange(8)
    if kind < 3:
        return luck.choice(INTEGERS)
    if kind == 3:
        return luck.choice(TEXTS)
    if kind == 4:
        return luck.choice((None, True, False, float("nan"), float("inf"), 1.5, b"", b"\xff" * 16, b"x" * 65_536))
    if kind == 5:
        return {str(number): number for number in range(luck.choice((0, 1, 500)))}
    if kind == 6:
        return msgspec.Raw(luck.choice((b"\x91", b"\x81\xa1a")) * luck.choice(DEPTHS) + b"\x90")
    return [luck.choice(INTEGERS) for _ in range(luck.choice((0, 1, 300)))]


def _change_inside(fields: list[object], luck: Random) -> None:
    """Replaces one value of a list, or of a list in it."""
    place = luck.randrange(len(fields))
    value = fields[place]
    if isinstance(value, list) and value and luck.random() < 0.8:
        _change_inside(value, luck)
    elif isinstance(value, dict) and value and luck.random() < 0.5:
        value[luck.choice(TEXTS)] = strange_value(luck)
    else:
        fields[place] = strange_value(luck)
