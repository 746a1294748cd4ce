"""What is in hand of one partition: what is handled, what is left, and putting that back."""

from itertools import islice

from fetched_partition import fetched_partition
from warmlog.consumer.hand import Hand
from warmlog.consumer.partition_reader import PartitionReader
from warmlog_protocol.batch import encode_batch

BEGUN = (3, 6)
EPOCH = 7


def hand_of(count: int) -> Hand[bytes]:
    """The records 5, 7, 8, … of a batch that was read from offset 3 on."""
    reader = PartitionReader("t", 0, b"", verify_crc=True, max_decompressed_bytes=1 << 20)
    reader.seek(*BEGUN)
    values = [b"%d" % number for number in range(count)]
    deltas = [0, *range(2, count + 1)]
    batch = encode_batch(values, timestamps_ms=5, base_offset=5, leader_epoch=EPOCH, offset_deltas=deltas)
    reader.add(fetched_partition(100), memoryview(batch))
    taken = reader.take()
    assert taken is not None
    return Hand(reader, BEGUN, iter(taken.values), taken.offsets)


def take(hand: Hand[bytes], count: int) -> list[bytes]:
    return list(islice(hand.items, count))


def test_the_item_that_was_delivered_last_is_not_finished() -> None:
    hand = hand_of(3)
    finished, positions = [hand.finished_place], [hand.next_offset]
    for _ in range(3):
        take(hand, 1)
        finished.append(hand.finished_place)
        positions.append(hand.next_offset)
    assert finished == [BEGUN, BEGUN, (7, EPOCH), (8, EPOCH)]
    assert positions == [5, 7, 8, 9]


def test_what_is_left_is_put_back_and_what_was_delivered_still_counts() -> None:
    hand = hand_of(4)
    few = islice(hand.items, 3)
    assert [next(few), next(few)] == [b"0", b"1"]
    hand.put_back()
    assert list(few) == take(hand, 4) == []
    assert (hand.delivered_count, hand.last_offset, hand.finished_place) == (2, 7, (7, EPOCH))
    assert (hand.next_offset, hand.reader.position) == (8, 8)
    again = hand.reader.take()
    assert again is not None
    assert again.offsets == [8, 9]


def test_nothing_is_put_back_if_all_is_delivered() -> None:
    hand = hand_of(2)
    take(hand, 2)
    hand.put_back()
    assert (hand.delivered_count, hand.next_offset, hand.reader.position) == (2, 8, 8)
    assert hand.reader.take() is None


def test_a_hand_that_is_put_back_before_the_first_item_leaves_all() -> None:
    hand = hand_of(2)
    hand.put_back()
    assert (hand.delivered_count, hand.finished_place, hand.reader.position) == (0, BEGUN, 5)


def test_a_seek_after_it_was_put_back_delivers_from_there() -> None:
    hand = hand_of(4)
    assert take(hand, 3) == [b"0", b"1", b"2"]
    hand.put_back()
    hand.reader.seek(*hand.finished_place)
    assert (hand.next_offset, hand.reader.epoch, hand.finished_place) == (8, EPOCH, (8, EPOCH))
