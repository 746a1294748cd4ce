"""CRC-32C: the check value, every kind of buffer, and computing it in parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_protocol.codec.crc import crc32c


def bitwise_crc32c(data: bytes) -> int:
    """The definition: reflected polynomial 0x1EDC6F41, all ones at the start and at the end."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=60))
def test_agrees_with_the_definition(data: bytes) -> None:
    assert crc32c(data) == bitwise_crc32c(data)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_takes_every_kind_of_buffer(kind: type) -> None:
    assert crc32c(kind(b"123456789")) == 0xE3069283


def test_takes_a_part_of_a_view() -> None:
    assert crc32c(memoryview(b"..123456789..")[2:-2]) == 0xE3069283


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_extending_gives_the_crc_of_both_parts(first: bytes, second: bytes) -> None:
    assert crc32c(second, crc32c(first)) == crc32c(first + second)
