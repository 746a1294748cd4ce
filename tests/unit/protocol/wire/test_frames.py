"""Frames: split anywhere, of any size, lying about their sizes; and the batches in their payloads."""

import struct
import tracemalloc
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.protocol.message_strategies import INT64, requests
from warmlog_protocol.codec.memory import LARGE_BYTES
from warmlog_protocol.errors import InvalidRequest, RemoteProtocolError
from warmlog_protocol.messages import API_OF_REQUEST, Message, MetadataRequest, ProducePartition, ProduceRequest
from warmlog_protocol.wire.connection import ReceivedBatch, Request
from warmlog_protocol.wire.frames import HEAD_BYTES, MAX_HEADER_BYTES, Frame, FrameBuffer, pack_frame, split_header

MAX_FRAME_BYTES = 1024 * 1024
BUFFER_BYTES = 4096


def new_buffer(max_frame_bytes: int = MAX_FRAME_BYTES, buffer_bytes: int = BUFFER_BYTES) -> FrameBuffer:
    return FrameBuffer(max_frame_bytes=max_frame_bytes, buffer_bytes=buffer_bytes)


def raw_frame(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(payload), len(header)) + header + payload


def pour(buffer: FrameBuffer, data: bytes) -> list[tuple[bytes, bytes]]:
    """Feed all of `data` as a socket would; headers and payloads of the frames that came out, copied."""
    out = []
    rest = memoryview(data)
    while rest:
        room = buffer.get_buffer()
        count = min(len(room), len(rest))
        room[:count] = rest[:count]
        rest = rest[count:]
        out += [(frame.header, bytes(frame.payload)) for frame in buffer.frames_received(count)]
    return out


def receive_one(buffer: FrameBuffer, data: bytes) -> Frame:
    """Feed `data`, which is one frame, and return it as it came, not copied."""
    rest = memoryview(data)
    while True:
        room = buffer.get_buffer()
        count = min(len(room), len(rest))
        room[:count] = rest[:count]
        rest = rest[count:]
        if frames := buffer.frames_received(count):
            assert len(frames) == 1
            return frames[0]


# --- whole frames out of any pieces -----------------------------------------------------------------------------------


frame_lists = st.lists(st.tuples(st.binary(max_size=60), st.binary(max_size=200)), max_size=12)


@given(frames=frame_lists, buffer_bytes=st.integers(0, 300), cuts=st.lists(st.integers(0, 3000), max_size=10))
def test_frames_come_out_whole_for_any_buffer_size_and_any_cuts(
    frames: list[tuple[bytes, bytes]], buffer_bytes: int, cuts: list[int]
) -> None:
    stream = b"".join(raw_frame(*frame) for frame in frames)
    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    buffer = new_buffer(buffer_bytes=buffer_bytes)
    assert [frame for start, end in pairwise(bounds) for frame in pour(buffer, stream[start:end])] == frames
    assert buffer.pending_bytes == 0


def test_all_frames_of_one_read_come_out_together() -> None:
    buffer = new_buffer()
    three = raw_frame(b"\x90", b"abc") * 3
    buffer.get_buffer()[: len(three)] = three
    assert [bytes(frame.payload) for frame in buffer.frames_received(len(three))] == [b"abc"] * 3


def test_pending_bytes_counts_what_has_come_of_an_unfinished_frame() -> None:
    buffer = new_buffer()
    pour(buffer, raw_frame(b"\x90", b"abc") + raw_frame(b"\x90", b"abc")[:9])
    assert buffer.pending_bytes == 9
    pour(buffer, raw_frame(b"\x90", b"abc")[9:])
    assert buffer.pending_bytes == 0


# --- who owns a payload -----------------------------------------------------------------------------------------------


def test_a_payload_that_fits_is_borrowed_and_holds_until_the_buffer_is_asked_for() -> None:
    buffer = new_buffer()
    frame = receive_one(buffer, raw_frame(b"\x90", b"first"))
    assert not frame.is_payload_owned
    assert bytes(frame.payload) == b"first"

    receive_one(buffer, raw_frame(b"\x90", b"other"))
    assert bytes(frame.payload) == b"other"  # it lay in the shared buffer, which was written again


def test_a_frame_larger_than_the_buffer_gets_memory_of_its_own() -> None:
    buffer = new_buffer()
    large = b"x" * (BUFFER_BYTES + 1)
    frame = receive_one(buffer, raw_frame(b"\x90", large))
    assert frame.is_payload_owned

    pour(buffer, raw_frame(b"\x90", b"y" * 100) * 100)
    pour(buffer, raw_frame(b"\x90", b"z" * len(large)))
    assert frame.payload == large


def test_a_header_is_a_copy_and_outlives_the_buffer() -> None:
    buffer = new_buffer()
    frame = receive_one(buffer, raw_frame(b"\x91\xa5first"))
    pour(buffer, raw_frame(b"\x91\xa5other"))
    assert frame.header == b"\x91\xa5first"


def test_the_room_for_a_large_frame_ends_with_the_frame() -> None:
    buffer = new_buffer()
    data = raw_frame(b"\x90", b"x" * 10_000)
    pour(buffer, data[:HEAD_BYTES])
    assert len(buffer.get_buffer()) == len(data) - HEAD_BYTES


# --- a buffer that changes its size ---------------------------------------------------------------------------------


@given(frames=frame_lists, sizes=st.lists(st.integers(0, 400), min_size=1, max_size=8), step=st.integers(1, 90))
def test_frames_come_out_whole_while_the_buffer_changes_its_size(
    frames: list[tuple[bytes, bytes]], sizes: list[int], step: int
) -> None:
    stream = b"".join(raw_frame(*frame) for frame in frames)
    buffer = new_buffer(buffer_bytes=64)
    received = []
    for index, start in enumerate(range(0, len(stream), step)):
        received += pour(buffer, stream[start : start + step])
        buffer.use_buffer(sizes[index % len(sizes)])
    assert received == frames
    assert buffer.pending_bytes == 0


def test_a_payload_outlives_the_buffer_that_was_replaced() -> None:
    buffer = new_buffer()
    frame = receive_one(buffer, raw_frame(b"\x90", b"first"))
    buffer.use_buffer(BUFFER_BYTES * 4)
    assert buffer.buffer_bytes == BUFFER_BYTES * 4
    receive_one(buffer, raw_frame(b"\x90", b"other"))
    assert bytes(frame.payload) == b"first"


def test_the_memory_that_a_large_frame_will_take_is_known_before_it_is_taken() -> None:
    buffer = new_buffer()
    data = raw_frame(b"\x90", b"x" * 10_000)
    pour(buffer, data[: HEAD_BYTES - 1])
    assert buffer.oversize_bytes == 0
    pour(buffer, data[HEAD_BYTES - 1 : HEAD_BYTES])
    assert buffer.oversize_bytes == len(data)
    pour(buffer, data[HEAD_BYTES:-1])
    assert buffer.oversize_bytes == len(data)
    pour(buffer, data[-1:])
    assert buffer.oversize_bytes == 0


# --- sizes that lie ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ((0xFFFFFFFF, 1), "a frame of 4294967299 bytes"),
        ((MAX_FRAME_BYTES - 3, 1), f"at most {MAX_FRAME_BYTES} are accepted"),
        ((100, 97), "a header of 97 bytes in a frame of 104"),
        ((100, 0xFFFFFFFF), "a header of 4294967295 bytes"),
        ((4, 1), "a header of 1 bytes in a frame of 8"),
        ((3, 0), "a header of 0 bytes in a frame of 7"),
        ((0, 0), "a header of 0 bytes in a frame of 4"),
    ],
)
def test_impossible_sizes_are_refused_after_eight_bytes_without_an_allocation(
    head: tuple[int, int], expected: str
) -> None:
    buffer = new_buffer()
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=expected):
            pour(buffer, struct.pack(">II", *head))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    buffer = new_buffer(max_frame_bytes=10_000)
    data = raw_frame(b"\x90", b"x" * (10_000 - HEAD_BYTES - 1))
    assert len(data) == 10_000
    assert pour(buffer, data) == [(b"\x90", data[HEAD_BYTES + 1 :])]


def test_a_header_over_its_own_limit_is_refused_though_the_frame_is_small_enough() -> None:
    buffer = new_buffer(max_frame_bytes=100 * 1024 * 1024)
    with pytest.raises(RemoteProtocolError, match="a header of"):
        pour(buffer, struct.pack(">II", 50 * 1024 * 1024, MAX_HEADER_BYTES + 1))


@given(data=st.binary(max_size=600))
def test_any_bytes_give_frames_or_a_protocol_error_and_never_more_memory_than_the_limit(data: bytes) -> None:
    buffer = new_buffer(max_frame_bytes=50_000, buffer_bytes=64)
    tracemalloc.start()
    try:
        pour(buffer, data)
    except RemoteProtocolError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 50_000 + 50_000


# --- headers ----------------------------------------------------------------------------------------------------------

prefixes = st.tuples(INT64, st.integers(0, 2**64 - 1), st.integers(-200, 70_000))


@settings(max_examples=200)
@given(prefix=prefixes, message=requests, payload=st.binary(max_size=100))
def test_a_packed_frame_gives_its_prefix_and_message_back(
    prefix: tuple[int, int, int], message: Message, payload: bytes
) -> None:
    frame = receive_one(new_buffer(), pack_frame(prefix, message, len(payload)) + payload)
    read_prefix, body = split_header(frame.header, 3)
    assert read_prefix == prefix
    assert msgspec.msgpack.decode(body, type=type(message)) == message
    assert frame.payload == payload


@pytest.mark.parametrize("fields", [0, 3, 12, 13, 15, 16, 17, 65_532, 65_533, 70_000])
def test_a_header_of_any_number_of_fields_is_one_array(fields: int) -> None:
    header = msgspec.msgpack.encode([1, -1, 300, *range(fields)])
    prefix, body = split_header(header, 3)
    assert prefix == (1, -1, 300)
    assert msgspec.msgpack.decode(body) == list(range(fields))


@pytest.mark.parametrize(
    "number", [0, 127, 128, 255, 256, 65_535, 65_536, 2**32, 2**64 - 1, -1, -32, -33, -129, -(2**63)]
)
def test_every_width_of_a_msgpack_integer_is_read(number: int) -> None:
    assert split_header(msgspec.msgpack.encode([number]), 1) == ((number,), b"\x90")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x93",
        b"\x93\x01\x02",
        b"\x92\x01\x02",
        b"\x93\x01\xcd\x00",
        b"\x93\x01\x02\xd3\x00\x00",
        b"\x93\x01\xc0\x02",
        b"\x93\x01\xa1a\x02",
        b"\x93\xca\x00\x00\x00\x00\x01\x02",
        b"\xdc\x00",
        b"\xdd\xff",
        b"\x83\x01\x02\x03",
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_a_header_that_does_not_begin_with_its_integers_is_refused(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        split_header(header, 3)


def test_a_frame_head_counts_the_payload_that_follows() -> None:
    frame = pack_frame((3, 0, 1), MetadataRequest(), 1000)
    size, header_size = struct.unpack_from(">II", frame)
    assert header_size == len(frame) - HEAD_BYTES
    assert size == 4 + header_size + 1000


# --- large frames -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [BUFFER_BYTES * 4, LARGE_BYTES * 2])
def test_of_a_large_frame_no_more_is_taken_than_was_allowed(size: int) -> None:
    buffer = new_buffer(max_frame_bytes=2 * size)
    payload = bytes(range(256)) * (size // 256)
    data = memoryview(raw_frame(b"\x90", payload))
    room = buffer.get_buffer()
    room[:100] = data[:100]
    assert not buffer.frames_received(100)
    taken = 100
    for allowed in (1000, size // 2, len(data)):
        buffer.allow(allowed)
        while taken < allowed:
            room = buffer.get_buffer()
            assert 0 < len(room) <= allowed - taken
            room[:] = data[taken : taken + len(room)]
            taken += len(room)
            frames = buffer.frames_received(len(room))
    (frame,) = frames
    assert frame.is_payload_owned
    assert frame.payload == payload


def test_a_large_frame_costs_nothing_before_it_has_come() -> None:
    buffer = new_buffer(max_frame_bytes=2**31)
    buffer.get_buffer()[:HEAD_BYTES] = struct.pack(">II", 2**30, 10)
    tracemalloc.start()
    buffer.frames_received(HEAD_BYTES)
    assert len(buffer.get_buffer()) > 2**29
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000


def test_a_header_over_its_own_limit_is_refused() -> None:
    buffer = FrameBuffer(max_frame_bytes=MAX_FRAME_BYTES, buffer_bytes=BUFFER_BYTES, max_header_bytes=1000)
    assert pour(buffer, raw_frame(b"h" * 1000))
    with pytest.raises(RemoteProtocolError, match="a header of 1001 bytes in a frame of 1009; at most 1000 allowed"):
        pour(buffer, raw_frame(b"h" * 1001))


# Batches in the payload of a Produce request


def produce_request(*sizes: int) -> ProduceRequest:
    return ProduceRequest(-1, 1000, [ProducePartition("t", number, size) for number, size in enumerate(sizes)])


def batches_of(message: ProduceRequest, payload: memoryview, *, is_owned: bool) -> list[ReceivedBatch]:
    return Request(API_OF_REQUEST[ProduceRequest], 0, 1, message, payload, is_owned).batches()


def test_each_partition_gets_its_bytes() -> None:
    batches = batches_of(produce_request(2, 0, 3), memoryview(b"aabbb"), is_owned=False)
    assert [(each.topic, each.partition, bytes(each.batch)) for each in batches] == [
        ("t", 0, b"aa"),
        ("t", 1, b""),
        ("t", 2, b"bbb"),
    ]


@pytest.mark.parametrize("sizes", [(4,), (6,), (), (2, 2), (-1, 6), (6, -1)])
def test_sizes_that_are_not_those_of_the_payload_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match=r"bytes by the header|negative"):
        batches_of(produce_request(*sizes), memoryview(b"aabbb"), is_owned=False)


def test_borrowed_memory_is_copied_to_be_kept() -> None:
    memory = bytearray(b"aa")
    (batch,) = batches_of(produce_request(2), memoryview(memory), is_owned=False)
    kept = batch.owned()
    memory[:] = b"xx"
    assert (bytes(batch.batch), bytes(kept.batch)) == (b"xx", b"aa")
    assert kept.owned() is kept


def test_owned_memory_is_not_copied() -> None:
    (batch,) = batches_of(produce_request(2), memoryview(b"aa"), is_owned=True)
    assert batch.owned() is batch
