"""What is remembered of producers, and what is refused because of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from present import present
from unit.broker.storage.log_room import make_batch
from unit.protocol.batch.golden_batches import E_EMPTIED
from warmlog_broker.storage.producer.producer_state import ForgottenSequence, ProducerStates
from warmlog_broker.storage.producer.verification import NO_GUARD
from warmlog_protocol.batch import BatchHeader, ControlType, EndTxnMarker, encode_end_txn_marker, read_header
from warmlog_protocol.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)

MAX_SEQUENCE = 2**31 - 1
TRANSACTIONAL = 1 << 4


def batch(
    sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 1, offset: int = 0, attributes: int = 0
) -> BatchHeader:
    header = read_header(make_batch(*[b"v"] * count, producer=(producer_id, epoch, sequence)))
    return header._replace(base_offset=offset, attributes=attributes)


def marker(*, epoch: int = 0, producer_id: int = 1, offset: int = 0, timestamp_ms: int = 0) -> BatchHeader:
    """The header of a control batch; what it says is told apart."""
    batch = encode_end_txn_marker(
        EndTxnMarker(ControlType.ABORT, 0), timestamp_ms=timestamp_ms, producer_id=producer_id, producer_epoch=epoch
    )
    return read_header(batch)._replace(base_offset=offset)


class Producers(ProducerStates):
    """Appends like a log: check, then update at the next offset. Transactions are verified before."""

    def append(self, header: BatchHeader, now_ms: int = 0) -> tuple[int, int] | None:
        """The offsets of the original, for a duplicate."""
        guard = NO_GUARD
        if header.is_transactional:
            guard = self.start_verification(header.producer_id, header.producer_epoch, now_ms)
        known = self.check(header, guard)
        if known is not None:
            return known.first_offset, known.last_offset
        self.update(header, self.end_offset, now_ms)
        self.end_offset += header.record_count
        return None

    def end(
        self,
        control_type: ControlType,
        *,
        producer_id: int = 1,
        epoch: int = 0,
        coordinator_epoch: int = 0,
        now_ms: int = 0,
    ) -> None:
        """A marker at the next offset."""
        header = marker(epoch=epoch, producer_id=producer_id, offset=self.end_offset, timestamp_ms=now_ms)
        self.end_transaction(header, EndTxnMarker(control_type, coordinator_epoch), now_ms)
        self.end_offset += 1


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


def test_beyond_the_limit_those_that_were_seen_longest_ago_are_forgotten() -> None:
    states = Producers()
    states.limit = 100
    for producer_id in range(100):
        states.append(batch(0, producer_id=producer_id), now_ms=producer_id)
    states.append(batch(1, producer_id=0), now_ms=500)
    states.append(batch(1, producer_id=1), now_ms=501)
    states.append(batch(0, producer_id=100), now_ms=502)
    assert len(states) == 100 - 100 // 8 + 1
    assert all(states.get(producer_id) for producer_id in (0, 1, 100))
    assert states.get(2) is None
    for producer_id in range(101, 500):
        states.append(batch(0, producer_id=producer_id), now_ms=600 + producer_id)
        assert len(states) <= 100


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    states = Producers()
    states.limit = 10
    states.append(batch(0, producer_id=1, attributes=TRANSACTIONAL))
    for producer_id in range(2, 40):
        states.append(batch(0, producer_id=producer_id), now_ms=producer_id)
    assert states.get(1) is not None
    assert len(states) <= 10


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


def test_a_sequence_that_the_log_has_no_room_for_is_out_of_order() -> None:
    states = Producers()
    states.append(batch(1000))
    with pytest.raises(OutOfOrderSequence) as refused:
        states.check(batch(10))
    assert not isinstance(refused.value, ForgottenSequence)


def test_check_changes_nothing() -> None:
    states = Producers()
    assert states.check(batch(0)) is None
    assert states.get(1) is None
    assert len(states) == 0


def test_replay_takes_what_the_log_holds_whatever_its_sequences() -> None:
    states = Producers()
    for header in (batch(16, offset=0), batch(40, offset=1), batch(2, epoch=3, offset=2)):
        states.replay(header, 0)
    entry = present(states.get(1))
    assert (entry.epoch, entry.next_sequence) == (3, 3)
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(41, epoch=3))
    assert states.check(batch(3, epoch=3)) is None


def test_replay_ignores_batches_without_producer() -> None:
    states = Producers()
    states.replay(read_header(make_batch(b"v")), 0)
    assert len(states) == 0


# Transactions


def test_transactional_batches_need_an_open_transaction_or_a_verified_one() -> None:
    states = Producers()
    with pytest.raises(InvalidTxnState, match="coordinator was not asked"):
        states.check(batch(0, attributes=TRANSACTIONAL))
    states.start_verification(1, 0, 0)
    with pytest.raises(InvalidTxnState):
        states.check(batch(0, attributes=TRANSACTIONAL))
    states.append(batch(0, attributes=TRANSACTIONAL))
    assert states.start_verification(1, 0, 0) is NO_GUARD
    assert states.check(batch(1, attributes=TRANSACTIONAL)) is None
    with pytest.raises(InvalidTxnState):
        states.check(batch(0, epoch=1, attributes=TRANSACTIONAL))


def test_without_the_need_for_verification_any_transactional_batch_opens_a_transaction() -> None:
    states = Producers()
    states.verifications.is_required = False
    assert states.check(batch(0, attributes=TRANSACTIONAL)) is None


def test_a_duplicate_is_answered_before_anybody_asks_for_its_transaction() -> None:
    states = Producers()
    states.append(batch(0, 2, attributes=TRANSACTIONAL))
    states.end(ControlType.COMMIT)
    assert states.append(batch(0, 2, attributes=TRANSACTIONAL)) == (0, 1)


def test_a_transaction_begins_with_the_first_batch_of_its_epoch() -> None:
    states = Producers()
    for epoch, found in enumerate(("not", "found")):
        guard = states.start_verification(1, epoch, 0)
        with pytest.raises(OutOfOrderSequence, match=f"sequence 0, {found} 4"):
            states.check(batch(4, epoch=epoch, attributes=TRANSACTIONAL), guard)
        states.append(batch(0, epoch=epoch, attributes=TRANSACTIONAL))
        states.end(ControlType.COMMIT, epoch=epoch + 1)


def test_an_open_transaction_takes_transactional_batches_only() -> None:  # PM-07
    states = Producers()
    states.append(batch(0, attributes=TRANSACTIONAL))
    with pytest.raises(InvalidTxnState, match="transaction open since offset 0, and the batch is not part"):
        states.check(batch(1))
    states.end(ControlType.COMMIT)
    assert states.check(batch(1)) is None


def test_markers_of_older_producers_and_older_coordinators_are_refused() -> None:
    states = Producers()
    states.append(batch(0, epoch=3, attributes=TRANSACTIONAL))
    states.end(ControlType.COMMIT, epoch=3, coordinator_epoch=15)
    with pytest.raises(InvalidProducerEpoch, match="epoch 2 is fenced by 3"):
        states.check_marker(marker(epoch=2), EndTxnMarker(ControlType.COMMIT, 16))
    with pytest.raises(TransactionCoordinatorFenced, match="coordinator epoch 14 is fenced by 15"):
        states.check_marker(marker(epoch=3), EndTxnMarker(ControlType.COMMIT, 14))
    assert not states.check_marker(marker(epoch=3), EndTxnMarker(ControlType.COMMIT, 15))
    assert states.check_marker(marker(epoch=4), EndTxnMarker(ControlType.COMMIT, 16))
    assert states.check_marker(marker(producer_id=2), EndTxnMarker(ControlType.COMMIT, 0))


def test_a_transaction_is_ended_by_its_own_marker_and_nothing_is_appended_behind_it_before_that() -> None:
    states = Producers()
    states.append(batch(0, attributes=TRANSACTIONAL))
    with pytest.raises(InvalidTxnState, match="not part of it"):
        states.append(batch(0, epoch=3, attributes=TRANSACTIONAL))
    with pytest.raises(InvalidTxnState, match=r"of epoch 0 is open .* and a marker of epoch 3 cannot end it"):
        states.check_marker(marker(epoch=3), EndTxnMarker(ControlType.COMMIT, 0))
    assert states.check_marker(marker(epoch=3), EndTxnMarker(ControlType.ABORT, 0))
    assert states.check_marker(marker(epoch=1), EndTxnMarker(ControlType.COMMIT, 0))


def test_a_marker_that_keeps_the_epoch_ends_a_transaction_of_just_that_epoch_and_sequences_go_on() -> None:
    states = Producers()
    states.append(batch(0, 3, epoch=2, attributes=TRANSACTIONAL))
    commit, abort = EndTxnMarker(ControlType.COMMIT, 0), EndTxnMarker(ControlType.ABORT, 0)
    with pytest.raises(InvalidProducerEpoch):
        states.check_marker(marker(epoch=1), commit, keeps_epoch=True)
    with pytest.raises(InvalidTxnState, match=r"of epoch 2 is open .* and a marker of epoch 3 cannot end it"):
        states.check_marker(marker(epoch=3), commit, keeps_epoch=True)
    assert states.check_marker(marker(epoch=3), abort, keeps_epoch=True)
    assert states.check_marker(marker(epoch=2), commit, keeps_epoch=True)
    states.end(ControlType.COMMIT, epoch=2)
    assert states.check_marker(marker(epoch=2), commit, keeps_epoch=True), "it revokes what is verified"
    assert states.append(batch(0, 3, epoch=2, attributes=TRANSACTIONAL)) == (0, 2)
    with pytest.raises(OutOfOrderSequence, match="expected sequence 3, found 4"):
        states.append(batch(4, epoch=2, attributes=TRANSACTIONAL))
    assert states.append(batch(3, epoch=2, attributes=TRANSACTIONAL)) is None


def test_a_producer_that_is_forgotten_begins_where_its_sequences_are_if_they_go_on() -> None:
    states = Producers()
    guard = states.start_verification(1, 2, 0, first_sequence=17)
    assert states.check(batch(17, epoch=2, attributes=TRANSACTIONAL), guard) is None
    states.start_verification(1, 2, 0, first_sequence=12)
    with pytest.raises(OutOfOrderSequence, match="begins with sequence 12, not 17"):
        states.check(batch(17, epoch=2, attributes=TRANSACTIONAL), guard)
    assert states.check(batch(12, 5, epoch=2, attributes=TRANSACTIONAL), guard) is None


def test_a_marker_of_a_lower_coordinator_epoch_is_replayed_as_it_lies() -> None:
    states = Producers()
    states.end(ControlType.COMMIT, coordinator_epoch=15)
    states.end(ControlType.ABORT, coordinator_epoch=14)
    entry = present(states.get(1))
    assert entry.coordinator_epoch == 14


def test_a_marker_as_the_first_record_sets_the_epoch_and_sequences_begin_at_zero() -> None:  # PM-02, PM-13
    states = Producers()
    assert states.aborted_by(marker(epoch=2), ControlType.ABORT) is None
    states.end(ControlType.ABORT, epoch=2)
    entry = present(states.get(1))
    assert (entry.epoch, len(entry.batches)) == (2, 0)
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(0, epoch=0))
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(17, epoch=2))
    assert states.check(batch(0, epoch=2)) is None
    assert states.expire(now_ms=199, expiration_ms=200) == 0


def test_the_marker_of_a_new_epoch_forgets_the_batches_of_the_old_one() -> None:  # PM-13
    states = Producers()
    states.append(batch(0, attributes=TRANSACTIONAL))
    aborted = states.aborted_by(marker(epoch=1, offset=1), ControlType.ABORT)
    assert aborted == (1, 0, 1, 2)
    states.end(ControlType.ABORT, epoch=1)
    entry = present(states.get(1))
    assert (entry.epoch, len(entry.batches), entry.transaction_first_offset) == (1, 0, -1)
    assert states.check(batch(0, epoch=1)) is None


def test_a_marker_counts_as_news_of_its_producer() -> None:
    states = Producers()
    states.append(batch(0, attributes=TRANSACTIONAL), now_ms=0)
    states.end(ControlType.COMMIT, now_ms=150)
    assert states.expire(now_ms=349, expiration_ms=200) == 0
    assert states.expire(now_ms=350, expiration_ms=200) == 1


def test_a_producer_whose_verification_never_ends_is_forgotten() -> None:
    states = Producers()
    guard = states.start_verification(1, 0, now_ms=0)
    states.expire(now_ms=199, expiration_ms=200)
    assert states.start_verification(1, 0, now_ms=199) is guard
    states.expire(now_ms=200, expiration_ms=200)
    assert states.start_verification(1, 0, now_ms=200) is not guard


def test_producers_expire_by_when_they_were_seen_and_not_by_their_records() -> None:
    states = Producers()
    states.append(batch(0), now_ms=1000)
    states.append(batch(0, producer_id=2), now_ms=1100)
    assert states.expire(now_ms=1199, expiration_ms=200) == 0
    assert states.expire(now_ms=1200, expiration_ms=200) == 1
    assert states.get(1) is None
    assert states.append(batch(9), now_ms=1200) is None
    assert states.max_producer_id == 2


def test_producers_with_an_open_transaction_never_expire() -> None:  # PM-19
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


def test_batches_that_compaction_took_records_from_still_tell_their_last_sequence() -> None:  # PS-05
    states = Producers()
    header = read_header(E_EMPTIED)
    states.replay(header, 0)
    entry = present(states.get(header.producer_id))
    assert (entry.epoch, entry.batches[-1].last_sequence, entry.batches[-1].last_offset) == (1, 17, 22)
    assert entry.next_sequence == 18
