"""How far the user has come in what was taken of one partition, against a list."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from fetched_partition import fetched_partition
from warmlog.consumer.consumer_core import Cursor
from warmlog.consumer.partition_reader import PartitionReader
from warmlog_protocol.batch import encode_batch

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


def test_a_table_counts_as_one_item_of_all_its_partitions() -> None:
    readers = [PartitionReader("t", number, b"", verify_crc=True, max_decompressed_bytes=1) for number in range(2)]
    for reader in readers:
        reader.seek(90, 2)
    table = iter(["a table"])
    cursors = [Cursor(reader, (10 * number, 1), (90, 2), table, [10 * number]) for number, reader in enumerate(readers)]
    assert [cursor.delivered for cursor in cursors] == [(0, 1), (10, 1)]
    next(table)
    assert [(cursor.delivered, cursor.finished) for cursor in cursors] == [((90, 2), (0, 1)), ((90, 2), (10, 1))]


def test_a_table_that_is_left_sends_all_its_partitions_back() -> None:
    readers = [PartitionReader("t", number, b"", verify_crc=True, max_decompressed_bytes=1) for number in range(2)]
    for reader in readers:
        reader.seek(90, 2)
    table = iter(["a table"])
    cursors = [Cursor(reader, (10 * number, 1), (90, 2), table, [10 * number]) for number, reader in enumerate(readers)]
    left = len(list(table))
    for cursor in cursors:
        cursor.cut(left)
    assert [(reader.position, reader.epoch, reader.fetch_offset) for reader in readers] == [(0, 1, 0), (10, 1, 10)]
