"""What a partition delivers out of what was fetched, whatever is hidden or damaged, and how far the user has come."""

import re
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import warmlog
from fetched_partition import fetched_partition
from warmlog.consumer.consumer_core import Cursor
from warmlog.consumer.partition_reader import NO_LIMIT, PartitionReader
from warmlog_protocol.batch import (
    ControlType,
    EndTxnMarker,
    empty_batch,
    encode_batch,
    encode_end_txn_marker,
    read_batch,
    read_header,
    to_rows,
)
from warmlog_protocol.messages import AbortedTransaction

HIGH_WATERMARK = 10_000


def reader_at(offset: int, *, verify_crc: bool = True) -> PartitionReader:
    reader = PartitionReader("t", 3, b"", verify_crc=verify_crc, max_decompressed_bytes=1 << 20)
    reader.seek(offset)
    return reader


def batch_at(base_offset: int, count: int, **options: object) -> bytes:
    values = [b"%d" % offset for offset in range(base_offset, base_offset + count)]
    return encode_batch(values, timestamps_ms=5, base_offset=base_offset, **options)  # type: ignore[arg-type]


def add(reader: PartitionReader, *batches: bytes, aborted: tuple[AbortedTransaction, ...] = ()) -> None:
    reader.add(fetched_partition(HIGH_WATERMARK, aborted=aborted), memoryview(b"".join(batches)))


def add_gap(reader: PartitionReader, next_offset: int) -> None:
    """A response without batches that says where to go on; -1 if it says nothing."""
    reader.add(fetched_partition(HIGH_WATERMARK, next_offset=next_offset), memoryview(b""))


def take_all(reader: PartitionReader) -> list[int]:
    offsets: list[int] = []
    while (batch := reader.take()) is not None:
        offsets += batch.offsets
    return offsets


def test_a_batch_that_begins_below_the_position_is_trimmed() -> None:
    reader = reader_at(7)
    add(reader, batch_at(5, 5), batch_at(10, 2))
    batch = reader.take()
    assert batch is not None
    assert (batch.base_offset, batch.next_offset, len(batch)) == (7, 10, 3)
    assert batch.values == [b"7", b"8", b"9"]
    assert [record.offset for record in batch] == batch.offsets == [7, 8, 9]
    assert (batch.topic, batch.partition, batch.high_watermark) == ("t", 3, HIGH_WATERMARK)
    assert take_all(reader) == [10, 11]
    assert reader.position == reader.fetch_offset == 12


def test_a_batch_that_is_cut_off_is_fetched_again() -> None:
    reader = reader_at(0)
    add(reader, batch_at(0, 3), batch_at(3, 3)[:-1])
    assert take_all(reader) == [0, 1, 2]
    assert reader.fetch_offset == 3


def test_reading_ends_at_the_limit_and_goes_on_from_there_in_the_middle_of_a_batch() -> None:
    reader = reader_at(0)
    reader.until = 4
    add(reader, batch_at(0, 3), batch_at(3, 3), batch_at(6, 3))
    assert take_all(reader) == [0, 1, 2, 3]
    assert reader.is_at_end
    assert (reader.position, reader.buffered_bytes) == (4, 0)
    reader.until = NO_LIMIT
    assert reader.fetch_offset == 4
    add(reader, batch_at(3, 3))
    assert take_all(reader) == [4, 5]


def test_a_limit_within_a_gap_is_reached_though_no_record_is_there() -> None:
    reader = reader_at(0)
    reader.until = 5
    add(reader, batch_at(0, 3), batch_at(8, 2))
    assert take_all(reader) == [0, 1, 2]
    assert reader.is_at_end


def test_what_was_taken_last_can_be_put_back_from_any_of_its_records_on() -> None:
    reader = reader_at(0)
    add(reader, batch_at(0, 3), batch_at(3, 3))
    size_bytes = reader.buffered_bytes
    reader.take()
    reader.put_back((1, -1))
    assert reader.position == 1
    assert reader.buffered_bytes == size_bytes
    assert take_all(reader) == [1, 2, 3, 4, 5]
    assert reader.buffered_bytes == 0
    reader.put_back((5, -1))
    assert take_all(reader) == [5]


def test_what_was_taken_before_the_last_batch_is_fetched_again_when_it_is_put_back() -> None:
    reader = reader_at(0)
    add(reader, batch_at(0, 3), batch_at(3, 3))
    reader.take()
    reader.take()
    reader.put_back((1, -1))
    assert (reader.position, reader.fetch_offset, reader.buffered_bytes) == (1, 1, 0)
    add(reader, batch_at(0, 3), batch_at(3, 3))
    assert take_all(reader) == [1, 2, 3, 4, 5]


def test_seeking_forgets_what_was_fetched() -> None:
    reader = reader_at(0)
    add(reader, batch_at(0, 3))
    generation = reader.generation
    reader.seek(100)
    assert not reader.has_something
    assert reader.generation != generation
    assert (reader.position, reader.fetch_offset, reader.buffered_bytes) == (100, 100, 0)


def test_a_damaged_batch_is_an_error_with_its_place_and_reading_stays_there() -> None:
    damaged = bytearray(batch_at(3, 3))
    damaged[-1] ^= 1
    reader = reader_at(0)
    add(reader, batch_at(0, 3), bytes(damaged), batch_at(6, 3))
    assert take_all(reader) == [0, 1, 2]
    assert isinstance(reader.error, warmlog.CorruptBatch)
    assert re.search("offset 3: CRC", str(reader.error))
    assert (reader.position, reader.fetch_offset, reader.damage_end) == (3, 3, 6)


def test_without_verification_a_wrong_crc_is_let_through() -> None:
    damaged = bytearray(batch_at(0, 3))
    damaged[-1] ^= 1
    reader = reader_at(0, verify_crc=False)
    add(reader, bytes(damaged))
    assert take_all(reader) == [0, 1, 2]


def test_a_malformed_body_under_a_right_crc_is_raised_when_its_records_are_asked_for() -> None:
    header = read_header(batch_at(0, 3))
    from warmlog_protocol.batch import seal_batch

    reader = reader_at(0)
    add(reader, seal_batch(header, b"no columns"), batch_at(3, 1))
    batch = reader.take()
    assert batch is not None
    for use in (lambda: batch.values, lambda: list(batch), batch.to_arrow):
        with pytest.raises(warmlog.UnreadableBatch, match="t-3, offsets 0 to 2"):
            use()
    assert take_all(reader) == [3]


@pytest.mark.parametrize("field", ["offset before", "end beyond the high watermark", "magic"])
def test_a_header_that_makes_no_sense_stops_the_fetch_there(field: str) -> None:
    wrong = {
        "offset before": batch_at(1, 2),
        "end beyond the high watermark": batch_at(HIGH_WATERMARK - 1, 2),
        "magic": batch_at(3, 2)[:16] + b"\x09" + batch_at(3, 2)[17:],
    }[field]
    reader = reader_at(0)
    add(reader, batch_at(0, 3), wrong, batch_at(5, 1))
    assert take_all(reader) == [0, 1, 2]
    assert isinstance(reader.error, warmlog.CorruptBatch)
    assert reader.fetch_offset == 3


def test_a_damaged_batch_that_hides_where_it_ends_is_an_error_for_whoever_can_look_behind_it() -> None:
    lying = bytearray(batch_at(3, 2))
    lying[25] ^= 1  # the last offset delta: the CRC is wrong now, and the batch seems to reach to offset 260
    reader = reader_at(0)
    add(reader, batch_at(0, 3), bytes(lying), batch_at(5, 1))
    assert take_all(reader) == [0, 1, 2]
    assert isinstance(reader.error, warmlog.CorruptBatch)
    assert reader.position == reader.fetch_offset == 3
    reader = reader_at(3)
    add(reader, bytes(lying))
    assert take_all(reader) == []
    assert reader.fetch_offset == 3


@pytest.mark.parametrize("is_dense", [True, False])
def test_a_gap_is_damage_only_where_offsets_are_dense(is_dense: bool) -> None:
    reader = reader_at(0)
    reader.add(fetched_partition(HIGH_WATERMARK, is_dense=is_dense), memoryview(batch_at(0, 3) + batch_at(7, 2)))
    assert take_all(reader) == ([0, 1, 2] if is_dense else [0, 1, 2, 7, 8])
    assert (reader.error is not None) == is_dense


@pytest.mark.parametrize(("row_gaps_up_to", "is_damage"), [(-1, False), (7, False), (6, True), (0, True)])
def test_a_gap_before_rows_is_damage_above_those_of_kafka(row_gaps_up_to: int, is_damage: bool) -> None:
    reader = reader_at(0)
    rows = b"".join(to_rows(read_batch(batch)) for batch in (batch_at(0, 3), batch_at(7, 2)))
    reader.add(fetched_partition(HIGH_WATERMARK, is_dense=True, row_gaps_up_to=row_gaps_up_to), memoryview(rows))
    assert take_all(reader) == ([0, 1, 2] if is_damage else [0, 1, 2, 7, 8])
    assert (reader.error is not None) == is_damage


def test_a_batch_behind_a_gap_is_not_believed_when_the_next_one_contradicts_it() -> None:
    reader = reader_at(0)
    add(reader, batch_at(0, 3), batch_at(9, 2), batch_at(5, 1))
    assert take_all(reader) == [0, 1, 2]
    assert isinstance(reader.error, warmlog.CorruptBatch)
    assert reader.fetch_offset == 3


def test_a_gap_is_passed_once_what_came_before_it_is_read() -> None:
    reader = reader_at(0)
    add(reader, batch_at(0, 3))
    add_gap(reader, 3)
    add_gap(reader, 20)
    assert take_all(reader) == [0, 1, 2]
    assert (reader.position, reader.fetch_offset, reader.has_something) == (20, 20, False)
    add(reader, batch_at(20, 2))
    assert take_all(reader) == [20, 21]


def test_a_gap_alone_is_something_to_pass() -> None:
    reader = reader_at(5)
    add_gap(reader, -1)
    assert not reader.has_something
    add_gap(reader, 8)
    assert reader.has_something
    assert reader.take() is None
    assert (reader.position, reader.has_something) == (8, False)


def test_a_gap_is_passed_up_to_the_end_that_is_asked_for_and_later_from_there() -> None:
    reader = reader_at(0)
    reader.until = 5
    add(reader, batch_at(0, 3))
    add_gap(reader, 9)
    assert take_all(reader) == [0, 1, 2]
    assert reader.is_at_end
    assert reader.position == reader.fetch_offset == 5
    reader.until = 12
    assert reader.wants_data(1000)
    add_gap(reader, 9)
    assert reader.take() is None
    assert reader.position == 9


def test_a_batch_before_a_gap_can_be_put_back() -> None:
    reader = reader_at(0)
    add(reader, batch_at(0, 3))
    add_gap(reader, 9)
    assert reader.take() is not None
    reader.put_back((1, -1))
    assert take_all(reader) == [1, 2]
    assert reader.position == 9


def test_an_error_behind_the_end_that_is_asked_for_is_not_told() -> None:
    reader = reader_at(0)
    add(reader, batch_at(0, 3))
    reader.error = warmlog.CorruptBatch("behind it")
    reader.until = 3
    assert take_all(reader) == [0, 1, 2]
    assert not reader.has_something
    reader.until = 4
    assert reader.has_something


def test_control_batches_and_empty_ones_are_hidden_but_their_offsets_count() -> None:
    marker = encode_end_txn_marker(
        EndTxnMarker(ControlType.COMMIT, 0), timestamp_ms=1, producer_id=1, producer_epoch=0, base_offset=3
    )
    emptied = empty_batch(read_header(batch_at(4, 3)))
    reader = reader_at(0)
    add(reader, batch_at(0, 3), marker, emptied)
    assert take_all(reader) == [0, 1, 2]
    assert reader.position == 7


def test_aborted_transactions_are_hidden() -> None:
    def data(base_offset: int, producer_id: int) -> bytes:
        return batch_at(base_offset, 2, producer_id=producer_id, producer_epoch=0, is_transactional=True)

    def end(base_offset: int, producer_id: int, kind: ControlType) -> bytes:
        return encode_end_txn_marker(
            EndTxnMarker(kind, 0),
            timestamp_ms=1,
            producer_id=producer_id,
            producer_epoch=0,
            base_offset=base_offset,
        )

    reader = reader_at(0)
    add(
        reader,
        data(0, 1),
        data(2, 2),
        batch_at(4, 1),
        end(5, 1, ControlType.ABORT),
        data(6, 1),
        end(8, 2, ControlType.COMMIT),
        end(9, 1, ControlType.COMMIT),
        aborted=(AbortedTransaction(1, 0),),
    )
    assert take_all(reader) == [2, 3, 4, 6, 7]
    assert reader.position == 10


def test_records_that_compaction_removed_leave_gaps() -> None:
    values = [b"a", b"b", b"c"]
    gapped = encode_batch(values, timestamps_ms=5, base_offset=10, offset_deltas=[0, 4, 9])
    reader = reader_at(12)
    add(reader, gapped)
    batch = reader.take()
    assert batch is not None
    assert (batch.offsets, batch.values, batch.next_offset) == ([14, 19], [b"b", b"c"], 20)
    reader = reader_at(15)
    reader.until = 19
    add(reader, gapped)
    assert reader.take() is None
    assert reader.is_at_end


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=20),
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40), st.booleans()), max_size=40),
)
def test_each_record_is_delivered_once(counts: list[int], start: int, steps: list[tuple[int, int, bool]]) -> None:
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    log = [batch_at(first, stop - first) for first, stop in pairwise(starts)]
    start = min(start, starts[-1])
    reader = reader_at(start)
    seen: list[int] = []
    for fetched, records, is_read_on in [*steps, *[(4, 100, True)] * len(log)]:
        first = max(i for i, base in enumerate(starts) if base <= reader.fetch_offset)
        add(reader, *log[first : first + fetched])
        reader.until = reader.position + records
        seen += take_all(reader)
        reader.until = NO_LIMIT
        if is_read_on:
            seen += take_all(reader)
    assert seen == list(range(start, starts[-1]))


BEGUN = (3, 6)
EPOCH = 7


def reader_with(deltas: list[int]) -> PartitionReader:
    """A batch at offset 5 that is read from offset 3 on."""
    reader = PartitionReader("t", 0, b"", verify_crc=True, max_decompressed_bytes=1 << 20)
    reader.seek(*BEGUN)
    values = [b"%d" % delta for delta in deltas]
    batch = encode_batch(values, timestamps_ms=5, base_offset=5, leader_epoch=EPOCH, offset_deltas=deltas)
    reader.add(fetched_partition(1000), memoryview(batch))
    return reader


def cursor_of(reader: PartitionReader) -> tuple[Cursor, list[bytes | None]]:
    taken = reader.take()
    assert taken is not None
    items = iter(taken.values)
    return Cursor(reader, BEGUN, (reader.position, reader.epoch), items, taken.offsets), items  # type: ignore[return-value]


@given(st.sets(st.integers(1, 30)), st.data())
def test_positions_are_those_of_a_list_before_and_after_the_rest_is_left(rest: set[int], data: st.DataObject) -> None:
    """Of records at these offsets, of which compaction has removed some, so many are delivered."""
    deltas = [0, *sorted(rest)]
    offsets = [5 + delta for delta in deltas]
    reader = reader_with(deltas)
    cursor, items = cursor_of(reader)
    places = [BEGUN, *[(offset, EPOCH) for offset in offsets[1:]], (offsets[-1] + 1, EPOCH)]
    for count in range(data.draw(st.integers(0, len(deltas))) + 1):
        if count:
            next(items)  # type: ignore[call-overload]
        assert (cursor.index, cursor.delivered, cursor.finished) == (count, places[count], places[max(count - 1, 0)])
    left = len(list(items))
    if left:
        cursor.cut(left)
    assert (cursor.index, cursor.delivered, cursor.finished) == (count, places[count], places[max(count - 1, 0)])
    assert (reader.position, reader.epoch) == places[count]
    if count == 0:
        reader.add(fetched_partition(1000), memoryview(b""))
    elif left:
        again = reader.take()
        assert again is not None
        assert again.offsets == offsets[count:]


def test_an_iterator_that_takes_further_finds_nothing_once_the_rest_was_left() -> None:
    reader = reader_with([0, 2, 3, 4])
    cursor, items = cursor_of(reader)
    few = islice(items, 3)
    assert [next(few), next(few)] == [b"0", b"2"]
    cursor.cut(len(list(items)))
    assert list(few) == []
    assert (cursor.delivered, cursor.finished) == ((8, EPOCH), (7, EPOCH))


@pytest.mark.parametrize("is_left", [True, False])
def test_a_table_is_one_item_of_all_its_partitions_and_sends_them_back_if_it_is_left(is_left: bool) -> None:
    readers = [PartitionReader("t", number, b"", verify_crc=True, max_decompressed_bytes=1) for number in range(2)]
    for reader in readers:
        reader.seek(90, 2)
    table = iter(["a table"])
    cursors = [Cursor(reader, (10 * number, 1), (90, 2), table, [10 * number]) for number, reader in enumerate(readers)]
    assert [cursor.delivered for cursor in cursors] == [(0, 1), (10, 1)]
    left = len(list(table))
    if is_left:
        for cursor in cursors:
            cursor.cut(left)
        assert [(reader.position, reader.epoch, reader.fetch_offset) for reader in readers] == [(0, 1, 0), (10, 1, 10)]
    else:
        assert [(cursor.delivered, cursor.finished) for cursor in cursors] == [((90, 2), (0, 1)), ((90, 2), (10, 1))]
