"""The last offset of each key, within a bound on memory."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.storage.cleaner.offset_map import ENTRY_BYTES, OffsetMap

KEYS = st.binary(max_size=3) | st.binary(min_size=30, max_size=34) | st.sampled_from([b"x" * 100, b"x" * 101])


def test_a_full_map_knows_what_it_has_and_how_full_it_is() -> None:
    """OM-03"""
    offsets = OffsetMap(4 * ENTRY_BYTES + 7)
    assert offsets.capacity == 4
    for number in range(4):
        assert offsets.has_room_for(1)
        offsets.put_all([b"%d" % number], [number])
    assert not offsets.has_room_for(1)
    assert (offsets.offsets_of([b"missing", b"3"]), offsets.latest_offset) == ([-1, 3], 3)
    assert len(offsets) == offsets.capacity
    offsets.latest_offset = 40
    assert offsets.latest_offset == 40


def test_an_empty_map_takes_a_first_batch_of_any_size() -> None:
    offsets = OffsetMap(ENTRY_BYTES)
    assert offsets.has_room_for(1000)
    offsets.put_all([b"a", b"b"], [0, 1])
    assert not offsets.has_room_for(1)


@given(st.lists(st.tuples(KEYS, st.integers(1, 3)), max_size=60), st.lists(KEYS, min_size=1, max_size=20))
def test_it_is_a_dictionary(steps: list[tuple[bytes, int]], asked: list[bytes]) -> None:
    offsets, model, offset = OffsetMap(1 << 20), {}, 0
    for key, step in steps:
        offset += step
        offsets.put_all([key], [offset])
        model[key] = offset
    assert offsets.offsets_of(asked) == [model.get(key, -1) for key in asked]
    assert len(offsets) == len(model)


def test_a_key_that_looks_like_anothers_digest_is_another_key() -> None:
    offsets = OffsetMap(1 << 20)
    offsets.put_all([b"long " * 20], [1])
    (digest,) = offsets._offsets
    assert offsets.offsets_of([digest]) == [-1]


def test_the_memory_that_was_given_is_not_passed() -> None:
    memory_bytes = 4_000_000
    offsets = OffsetMap(memory_bytes)
    tracemalloc.start()
    try:
        for number in range(offsets.capacity):
            offsets.put_all([b"a key of 31 bytes %013d" % number], [10**12 + number])
            if number % 64 == 0:
                assert tracemalloc.get_traced_memory()[1] <= memory_bytes
        assert tracemalloc.get_traced_memory()[1] <= memory_bytes
    finally:
        tracemalloc.stop()


def test_no_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="hold no key"):
        OffsetMap(10)
