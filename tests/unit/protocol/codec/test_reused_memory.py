"""Memory that is used again: never while anything refers to it, and not kept when it is not needed."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_protocol.codec.memory import MOST_REUSED, MOST_REUSED_BYTES, ReusedMemory

KIB = 1024
SIZES = st.sampled_from([300 * KIB, 400 * KIB, 700 * KIB, 2048 * KIB, MOST_REUSED_BYTES + 1])


@given(st.lists(st.tuples(SIZES, st.integers(0, 3)), max_size=30))
def test_what_is_referred_to_is_never_given_out_again(steps: list[tuple[int, int]]) -> None:
    allocate = ReusedMemory()
    held: list[tuple[memoryview, int]] = []
    for number, (size_bytes, keeps) in enumerate(steps):
        del held[keeps:]
        memory = allocate(size_bytes)
        assert len(memory) == size_bytes
        memory[0] = memory[-1] = number
        held.insert(0, (memory[-1:], number))  # a part of it holds it as the whole does
        assert all(part[0] == content for part, content in held)


@pytest.mark.parametrize("hold", [memoryview, lambda view: np.frombuffer(view, np.uint8)[5:], pa.py_buffer])
def test_views_arrays_and_buffers_of_arrow_hold_it(hold: Any) -> None:
    allocate = ReusedMemory()
    memory = allocate(300 * KIB)
    memory[:] = bytes(300 * KIB)
    held = hold(memory[100:])
    del memory
    allocate(300 * KIB)[:] = b"x" * 300 * KIB
    assert not any(memoryview(held))
    del held
    addresses = {pa.py_buffer(allocate(300 * KIB)).address for _ in range(4)}
    assert len(addresses) == 1, "all is free again, and the first that fits is used"


def test_a_buffer_is_used_for_another_size_if_it_is_not_much_larger() -> None:
    allocate = ReusedMemory()
    first = pa.py_buffer(allocate(700 * KIB)).address
    assert pa.py_buffer(allocate(500 * KIB)).address == first
    small = pa.py_buffer(allocate(100 * KIB))
    assert pa.py_buffer(allocate(700 * KIB)).address != small.address


def test_what_is_not_in_use_is_freed_bit_by_bit() -> None:
    allocate = ReusedMemory()
    held = [allocate(300 * KIB) for _ in range(3)]
    allocate.shrink()
    assert len(allocate.buffers) == 3
    del held[1:]
    for left in (2, 1, 1):
        allocate.shrink()
        assert len(allocate.buffers) == left
    held.append(allocate(2048 * KIB))
    held.clear()
    allocate(700 * KIB)
    assert len(allocate.buffers) == 2, "one that does not fit is freed for each that is made"
    allocate.release()
    assert len(allocate.buffers) == 0


def test_what_is_held_beyond_some_buffers_is_not_kept() -> None:
    allocate = ReusedMemory()
    held = [allocate(300 * KIB) for _ in range(3 * MOST_REUSED)]
    assert len(held) == 3 * len(allocate.buffers)
