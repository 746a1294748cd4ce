"""Columns that numpy sums and compares give the answers of plain ones, whatever their width."""

from hypothesis import given, settings
from hypothesis import strategies as st

from warmlog.arrow.int_array import ArrayColumn, integers_of
from warmlog_protocol.batch.int_column import pack_ints

bounds = st.sampled_from([1, 1 << 8, 1 << 16, 1 << 32, 1 << 64])
columns = bounds.flatmap(lambda bound: st.lists(st.integers(0, bound - 1), max_size=40)) | st.sets(
    st.integers(0, (1 << 64) - 1), max_size=40
).map(sorted)


@given(values=columns)
@settings(max_examples=300, deadline=None)
def test_an_array_column_answers_as_a_plain_one(values: list[int]) -> None:
    plain = pack_ints(values)
    column = ArrayColumn(plain.width, plain.data, plain.count)
    assert column.total() == plain.total() == sum(values)
    assert column.largest() == plain.largest() == max(values, default=0)
    assert column.zeros() == plain.zeros() == values.count(0)
    assert column.is_increasing() == plain.is_increasing() == (sorted(set(values)) == values)
    assert column.tolist() == values


@given(values=st.lists(st.integers(0, 70_000), min_size=1, max_size=40), data=st.data())
@settings(max_examples=100, deadline=None)
def test_some_integers_of_a_column_are_read_where_they_lie(values: list[int], data: st.DataObject) -> None:
    column = pack_ints(values)
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    expected = [column.constant] if column.width == 0 else values[start:stop]
    assert integers_of(column, start, stop).tolist() == expected
