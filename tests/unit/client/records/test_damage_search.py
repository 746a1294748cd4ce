"""Finding the end of damage whose extent nobody tells."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from warmlog.records.damage_search import next_readable


@given(st.integers(0, 1000), st.integers(1, 5000), st.integers(0, 3000))
def test_reading_goes_on_at_the_first_offset_behind_the_damage(damaged: int, extent: int, rest: int) -> None:
    asked = []

    async def is_readable(offset: int) -> bool:
        asked.append(offset)
        return offset >= damaged + extent

    end = damaged + extent + rest
    assert asyncio.run(next_readable(is_readable, damaged, end)) == damaged + extent
    assert len(asked) <= 2 * extent.bit_length() + 2
    assert all(damaged < offset < end for offset in asked)
