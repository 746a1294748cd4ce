"""Rows of Arrow columns find their partitions and batches, as a simple model has it."""

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.arrow_write import batching as arrow_batching
from warmlog.arrow_write.batching import BatchOfRows, TopicBatches
from warmlog.arrow_write.rows import ArrowRows, BytesColumn, RowSpan
from warmlog.errors import MessageTooLarge, UnknownTopicOrPartition
from warmlog.producer.intake.partitioner import partition_of_key
from warmlog.producer.intake.record_input import BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES

Row = tuple[bytes | None, bytes, int | None]

keys = st.one_of(st.none(), st.just(b""), st.binary(min_size=1, max_size=3))
partitions_chosen = st.one_of(st.none(), st.integers(0, 2))
rows = st.tuples(keys, st.binary(max_size=40), partitions_chosen)


def batches_for(partitions: int, *, limit_bytes: int = 400, max_message_bytes: int = 1000) -> TopicBatches:
    return TopicBatches(
        "t", partitions, limit_bytes=limit_bytes, max_message_bytes=max_message_bytes, first_sticky=partitions + 1
    )


def arrow_of(given_rows: list[Row]) -> tuple[ArrowRows, pa.Array]:
    keys, values, chosen = zip(*given_rows, strict=True)
    return ArrowRows(pa.array(values, pa.binary()), pa.array(keys, pa.binary())), pa.array(chosen, pa.int32())


def content(batch: BatchOfRows) -> list[tuple[bytes | None, bytes | None]]:
    found = []
    for span in batch.spans:
        keys = [None] * span.count if span.rows.keys is None else items_of(span.rows.keys, span)
        found += list(zip(keys, items_of(span.rows.values, span), strict=True))
    return found


def items_of(column: BytesColumn, span: RowSpan) -> list[bytes | None]:
    return [
        column.data(index, index + 1).tobytes() if column.lengths[index] else None
        for index in range(span.start, span.stop)
    ]


def size_of(records: Iterable[tuple[bytes | None, bytes | None]]) -> int:
    return BATCH_OVERHEAD_BYTES + sum(
        RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") for key, value in records
    )


@given(given_batches=st.lists(st.lists(rows, min_size=1, max_size=30), max_size=4), partitions=st.integers(3, 5))
def test_each_row_goes_where_the_producer_would_put_it_in_order_and_batches_are_bounded(
    given_batches: list[list[Row]], partitions: int
) -> None:
    batching = batches_for(partitions)
    made: list[BatchOfRows] = []
    for given_rows in given_batches:
        made += batching.add(*arrow_of(given_rows))
    made += batching.flush()
    assert list(batching.flush()) == []
    every = [(key, value, chosen) for given_rows in given_batches for key, value, chosen in given_rows]
    assert sorted((key or b"", value) for batch in made for key, value in content(batch)) == sorted(
        (key or b"", value) for key, value, _ in every
    )
    for batch in made:
        assert batch.size_bytes == size_of(content(batch)) <= 400
    for partition in range(partitions):
        found = [record for batch in made if batch.partition == partition for record in content(batch)]
        keyed = [
            (key, value)
            for key, value, chosen in every
            if (chosen if chosen is not None else partition_of_key(key, partitions) if key else -1) == partition
        ]
        rest = iter(found)
        assert all(record in rest for record in keyed), "a subsequence of what the partition got"


@given(
    given_batches=st.lists(st.lists(st.tuples(keys, partitions_chosen), max_size=30), max_size=4),
    partitions=st.integers(1, 4),
)
def test_a_partitions_rows_keep_their_order_whatever_chose_it(
    given_batches: list[list[tuple[bytes | None, int | None]]], partitions: int
) -> None:
    batching = batches_for(partitions)
    made: list[BatchOfRows] = []
    count = 0
    for given_rows in filter(None, given_batches):
        numbered = [
            (key, b"%0*d" % (number % 50, number), None if chosen is None else chosen % partitions)
            for number, (key, chosen) in enumerate(given_rows, count)
        ]
        made += batching.add(*arrow_of(numbered))
        count += len(given_rows)
    made += batching.flush()
    found = [
        [int(value or b"") for batch in made if batch.partition == partition for _, value in content(batch)]
        for partition in range(partitions)
    ]
    assert found == [sorted(own) for own in found]
    assert sorted(number for own in found for number in own) == list(range(count))


def test_rows_that_stick_among_others_go_to_one_partition_after_another_too() -> None:
    batching = batches_for(4)
    made: list[BatchOfRows] = []
    for _ in range(5):
        made += batching.add(
            *arrow_of([(None, b"%040d" % number, 3 if number % 4 == 0 else None) for number in range(40)])
        )
    made += batching.flush()
    found = Counter(batch.partition for batch in made for key, value in content(batch) if int(value or b"") % 4)
    assert sum(found.values()) == 150
    assert min(found[partition] for partition in range(4)) > 25


def test_rows_without_a_key_fill_one_batch_after_another_each_in_the_next_partition() -> None:
    values = [b"%040d" % number for number in range(21)]
    made = list(batches_for(3).add(ArrowRows(pa.array(values))))
    per_batch = (400 - BATCH_OVERHEAD_BYTES) // (40 + RECORD_OVERHEAD_BYTES)
    assert [len(content(batch)) for batch in made] == [per_batch] * (20 // per_batch)
    assert [batch.partition for batch in made] == [(1 + number) % 3 for number in range(len(made))]
    assert [value for batch in made for _, value in content(batch)] == values[: per_batch * len(made)]


def test_a_record_larger_than_the_limit_has_a_batch_for_itself_and_one_larger_than_any_is_refused() -> None:
    batching = batches_for(1)
    values = [b"a" * 10, b"b" * 500, b"c" * 10]
    made = [*batching.add(ArrowRows(pa.array(values))), *batching.flush()]
    assert [content(batch) for batch in made] == [[(None, value)] for value in values]
    with pytest.raises(MessageTooLarge, match=r"a record for topic t: 1141 bytes .* max.message.bytes=1000"):
        list(batching.add(ArrowRows(pa.array([b"a" * 1000]))))


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_partition_that_does_not_exist_is_refused(partition: int) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=f"topic t has partitions 0 to 2, not {partition}"):
        list(batches_for(3).add(ArrowRows(pa.array([b""])), pa.array([partition], pa.int32())))


def test_rows_do_not_wait_without_end_for_a_batch_to_fill_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_batching, "HOLD_BYTES", 1000)
    batching = batches_for(2, limit_bytes=600)
    rare = ArrowRows(pa.array([b"rare"]))
    assert list(batching.add(rare, pa.array([1], pa.int32()))) == []
    made: list[BatchOfRows] = []
    for _ in range(5):
        made += batching.add(ArrowRows(pa.array([b"often" * 40])), pa.array([0], pa.int32()))
    assert (None, b"rare") in [record for batch in made for record in content(batch)]
