"""What is remembered of producers, and what is refused because of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.broker.log.log_room import make_batch
from warmlog_broker.log.producer_state import ForgottenSequence, ProducerStates
from warmlog_protocol.batch import BatchHeader, read_header
from warmlog_protocol.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence

MAX_SEQUENCE = 2**31 - 1
TRANSACTIONAL = 1 << 4


def batch(
    sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 1, offset: int = 0, attributes: int = 0
) -> BatchHeader:
    header = read_header(make_batch(*[b"v"] * count, producer=(producer_id, epoch, sequence)))
    return header._replace(base_offset=offset, attributes=attributes)


class Producers(ProducerStates):
    """Appends like a log: check, then update at the next offset."""

    def append(self, header: BatchHeader, now_ms: int = 0) -> tuple[int, int] | None:
        """The offsets of the original, for a duplicate."""
        known = self.check(header)
        if known is not None:
            return known.first_offset, known.last_offset
        self.update(header, self.end_offset, now_ms)
        self.end_offset += header.record_count
        return None


def test_sequences_must_follow_one_another() -> None:
    states = Producers()
    states.append(batch(0))
    states.append(batch(1))
    with pytest.raises(OutOfOrderSequence, match="expected sequence 2, found 5 to 5"):
        states.check(batch(5))
    states.append(batch(2))


def test_a_new_epoch_begins_with_sequence_zero_and_fences_the_old_one() -> None:
    states = Producers()
    states.append(batch(0, 3))
    with pytest.raises(OutOfOrderSequence, match="must begin with 0"):
        states.check(batch(3, epoch=1))
    states.append(batch(0, epoch=1))
    with pytest.raises(InvalidProducerEpoch, match="epoch 0 is fenced by 1"):
        states.check(batch(3, epoch=0))
    states.append(batch(1, epoch=1))


def test_an_unknown_producer_may_begin_anywhere() -> None:
    states = Producers()
    states.append(batch(16))
    assert states.append(batch(16)) == (0, 0)
    states.append(batch(17))


def test_each_of_the_last_five_batches_is_answered_with_its_original_offsets() -> None:
    states = Producers()
    for sequence in range(6):
        states.append(batch(sequence))
    states.append(batch(6, 3))
    assert states.append(batch(6, 3)) == (6, 8)
    for sequence in (2, 3, 4, 5):
        assert states.append(batch(sequence)) == (sequence, sequence)
    assert states.end_offset == 9


def test_a_batch_that_overlaps_remembered_ones_is_out_of_order() -> None:
    states = Producers()
    states.append(batch(0, 3))
    states.append(batch(3, 3))
    for overlapping in (batch(4, 2), batch(2, 2), batch(0, 6), batch(5, 4)):
        with pytest.raises(OutOfOrderSequence) as refused:
            states.check(overlapping)
        assert not isinstance(refused.value, ForgottenSequence)


def test_a_batch_from_before_the_remembered_ones_says_where_it_would_lie() -> None:
    states = Producers()
    states.append(batch(0, 2))
    states.update(batch(0, producer_id=2), 2, 0)
    states.end_offset = 3
    for sequence in range(2, 8):
        states.append(batch(sequence))
    with pytest.raises(ForgottenSequence) as forgotten:
        states.check(batch(0, 2))
    assert forgotten.value.newest_first_offset == 1
    assert not forgotten.value.is_new_to_producer


def test_a_batch_from_before_a_producers_first_one_is_known_to_be_new() -> None:
    states = Producers(end_offset=100)
    states.append(batch(7))
    with pytest.raises(ForgottenSequence) as forgotten:
        states.check(batch(6))
    assert forgotten.value.is_new_to_producer


def test_a_sequence_that_the_log_has_no_room_for_is_out_of_order() -> None:
    states = Producers()
    states.append(batch(1000))
    with pytest.raises(OutOfOrderSequence) as refused:
        states.check(batch(10))
    assert not isinstance(refused.value, ForgottenSequence)


def test_sequences_go_on_with_zero_after_the_largest() -> None:
    states = Producers()
    states.append(batch(MAX_SEQUENCE - 1, 3))
    assert states.append(batch(MAX_SEQUENCE - 1, 3)) == (0, 2)
    states.append(batch(1))
    assert states.append(batch(1)) == (3, 3)


def test_check_changes_nothing() -> None:
    states = Producers()
    assert states.check(batch(0)) is None
    assert states.get(1) is None
    assert len(states) == 0


def test_replay_takes_what_the_log_holds_whatever_its_sequences() -> None:
    states = Producers()
    for header in (batch(16, offset=0), batch(40, offset=1), batch(2, epoch=3, offset=2)):
        states.replay(header, 0)
    entry = states.get(1)
    assert entry is not None
    assert (entry.epoch, entry.next_sequence) == (3, 3)
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(41, epoch=3))
    assert states.check(batch(3, epoch=3)) is None


def test_replay_ignores_batches_without_producer() -> None:
    states = Producers()
    states.replay(read_header(make_batch(b"v")), 0)
    assert len(states) == 0


def test_an_open_transaction_holds_the_stable_offset_until_its_marker() -> None:
    states = Producers()
    states.replay(batch(0, offset=5, attributes=TRANSACTIONAL), 0)
    states.replay(batch(1, offset=6, attributes=TRANSACTIONAL), 0)
    states.replay(batch(0, producer_id=2, offset=7, attributes=TRANSACTIONAL), 0)
    assert states.first_unstable_offset == 5
    with pytest.raises(InvalidTxnState, match="transaction open since offset 5"):
        states.check(batch(2))
    states.replay_marker(batch(0, offset=8), coordinator_epoch=15, now_ms=0)
    assert states.first_unstable_offset == 7
    assert states.check(batch(2)) is None
    entry = states.get(1)
    assert entry is not None
    assert entry.coordinator_epoch == 15
    states.replay_marker(batch(0, producer_id=2, offset=9), coordinator_epoch=15, now_ms=0)
    assert states.first_unstable_offset is None


def test_after_a_marker_alone_the_epoch_is_known_and_sequences_begin_at_zero() -> None:
    states = Producers()
    states.replay_marker(batch(0, epoch=2, offset=0), coordinator_epoch=1, now_ms=0)
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(0, epoch=0))
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(17, epoch=2))
    assert states.check(batch(0, epoch=2)) is None


def test_producers_expire_by_when_they_were_seen_and_not_by_their_records() -> None:
    states = Producers()
    states.append(batch(0), now_ms=1000)
    states.append(batch(0, producer_id=2), now_ms=1100)
    assert states.expire(now_ms=1199, expiration_ms=200) == 0
    assert states.expire(now_ms=1200, expiration_ms=200) == 1
    assert states.get(1) is None
    assert states.append(batch(9), now_ms=1200) is None
    assert states.max_producer_id == 2


def test_producers_with_an_open_transaction_never_expire() -> None:
    states = Producers()
    states.replay(batch(0, attributes=TRANSACTIONAL), 0)
    assert states.expire(now_ms=10**12, expiration_ms=1) == 0


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=40))
def test_a_producer_that_sends_everything_twice_writes_everything_once(sends: list[tuple[int, bool]]) -> None:
    states = Producers()
    sequence = MAX_SEQUENCE - 20
    for count, is_sent_again in sends:
        first_offset = states.end_offset
        assert states.append(batch(sequence, count)) is None
        if is_sent_again:
            assert states.append(batch(sequence, count)) == (first_offset, first_offset + count - 1)
        sequence = (sequence + count) & MAX_SEQUENCE
    assert states.end_offset == sum(count for count, _ in sends)
