"""The order of one partition's batches, whatever happens to them: decisions only, no broker."""

from collections import deque
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

import warmlog
from warmlog.producer.partition_queue import PartitionQueue, Verdict, verdict
from warmlog.producer.producer_batch import ProducerBatch, encode_records
from warmlog_protocol.batch import read_header
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages import ProducedPartition

FIRST_ID, NEXT_ID = (7, 0), (7, 1)
MAX_IN_FLIGHT = 5


def batch_of(value: bytes, count: int = 1) -> ProducerBatch:
    batch = ProducerBatch("t", 0, 0.0, lambda _: None)
    batch.fill(partial(encode_records, [value] * count, None, None, 5), count, 10)
    return batch


def _is_empty(queue: PartitionQueue) -> bool:
    return not (queue.open or queue.closed or queue.in_flight or queue.retries)


def data_of(batch: ProducerBatch) -> bytes:
    return b"".join(batch.pieces)


def queue_of(count: int) -> tuple[PartitionQueue, list[ProducerBatch]]:
    queue = PartitionQueue("t", 0, is_idempotent=True)
    queue.adopt(FIRST_ID)
    queue.is_established = True
    batches = [batch_of(b"%d" % i, i + 1) for i in range(count)]
    queue.closed.extend(batches)
    return queue, batches


def send_all(queue: PartitionQueue) -> list[ProducerBatch]:
    sent = []
    while (batch := queue.next_to_send(0.0, MAX_IN_FLIGHT)) is not None:
        queue.mark_sent(batch, Codec.NONE)
        sent.append(batch)
    return sent


def acknowledge(queue: PartitionQueue, batch: ProducerBatch) -> None:
    assert queue.judge(batch, ProducedPartition("t", 0, 0)) is Verdict.DELIVERED


def test_at_most_five_are_in_flight_with_consecutive_sequences() -> None:
    queue, batches = queue_of(7)
    assert send_all(queue) == batches[:5]
    assert [batch.base_sequence for batch in batches[:5]] == [0, 1, 3, 6, 10]
    acknowledge(queue, batches[0])
    assert send_all(queue) == [batches[5]]


def test_after_a_disconnect_the_same_batches_go_again_under_the_same_sequences_before_all_others() -> None:
    queue, batches = queue_of(6)
    sent = send_all(queue)
    before = [data_of(batch) for batch in sent]
    for batch in sent:
        assert queue.judge(batch, warmlog.BrokerUnavailable("gone")) is Verdict.RETRY
    assert send_all(queue) == batches[:5]
    assert [data_of(batch) for batch in sent] == before


def test_a_batch_that_failed_alone_waits_until_those_behind_it_have_come_back() -> None:
    queue, batches = queue_of(3)
    send_all(queue)
    acknowledge(queue, batches[0])
    assert queue.judge(batches[1], warmlog.StorageError("full")) is Verdict.RETRY
    assert send_all(queue) == []
    assert queue.judge(batches[2], warmlog.OutOfOrderSequence("behind")) is Verdict.REJECTED
    assert send_all(queue) == batches[1:]


def test_a_batch_that_waits_for_one_before_it_is_held_up_by_that_ones_error() -> None:
    queue, batches = queue_of(3)
    send_all(queue)
    queue.judge(batches[0], warmlog.StorageError("offline"))
    for batch in batches[1:]:
        queue.judge(batch, warmlog.OutOfOrderSequence("expected sequence 0"))
    assert [str(batch.last_error) for batch in batches] == ["offline"] * 3
    queue.give_up(batches[0])
    send_all(queue)
    assert [str(batch.last_error) for batch in batches[1:]] == ["offline"] * 2


def test_an_order_that_nobody_can_explain_is_the_reason_itself() -> None:
    queue, batches = queue_of(1)
    send_all(queue)
    assert queue.judge(batches[0], warmlog.OutOfOrderSequence("expected sequence 7")) is Verdict.FAILED
    assert str(batches[0].last_error) == "expected sequence 7"


def test_a_pause_holds_everything_back() -> None:
    queue, batches = queue_of(1)
    queue.paused_until = 2.0
    assert queue.next_to_send(1.0, MAX_IN_FLIGHT) is None
    assert queue.next_to_send(2.0, MAX_IN_FLIGHT) is batches[0]


def test_when_one_is_given_up_the_rest_goes_on_under_a_new_epoch_from_sequence_zero() -> None:
    queue, batches = queue_of(4)
    send_all(queue)
    assert queue.judge(batches[0], warmlog.MessageTooLarge("too large")) is Verdict.FAILED
    assert queue.judge(batches[1], warmlog.OutOfOrderSequence("behind")) is Verdict.REJECTED
    assert not queue.awaits_producer
    assert queue.judge(batches[2], warmlog.OutOfOrderSequence("behind")) is Verdict.REJECTED
    assert queue.judge(batches[3], warmlog.OutOfOrderSequence("behind")) is Verdict.REJECTED
    assert queue.awaits_producer
    assert send_all(queue) == []
    queue.adopt(NEXT_ID)
    assert send_all(queue) == [batches[1]]
    acknowledge(queue, batches[1])
    assert send_all(queue) == batches[2:]
    headers = [read_header(data_of(batch)) for batch in batches[1:]]
    assert [header.base_sequence for header in headers] == [0, 2, 5]
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {NEXT_ID}


def test_before_a_new_epoch_a_batch_without_an_answer_goes_again_as_it_was() -> None:
    queue, batches = queue_of(3)
    send_all(queue)
    queue.judge(batches[0], warmlog.InvalidRecord("no"))
    queue.judge(batches[1], warmlog.OutOfOrderSequence("behind"))
    queue.judge(batches[2], warmlog.BrokerUnavailable("no answer: it may be in the log"))
    assert not queue.awaits_producer
    assert send_all(queue) == [batches[2]]
    assert read_header(data_of(batches[2])).producer_epoch == FIRST_ID[1]
    assert queue.judge(batches[2], warmlog.OutOfOrderSequence("it is not")) is Verdict.REJECTED
    assert queue.awaits_producer


def test_a_partition_gets_a_second_batch_of_a_new_producer_only_when_it_has_taken_the_first() -> None:
    queue, batches = queue_of(3)
    queue.is_established = False
    assert send_all(queue) == [batches[0]]
    queue.judge(batches[0], warmlog.StorageError("full"))
    assert send_all(queue) == [batches[0]]
    acknowledge(queue, batches[0])
    assert send_all(queue) == batches[1:]


def test_nothing_new_is_sent_while_the_next_epoch_is_awaited() -> None:
    queue, batches = queue_of(2)
    queue.mark_sent(batches[0], Codec.NONE)
    queue.judge(batches[0], warmlog.MessageTooLarge("too large"))
    assert send_all(queue) == []
    queue.adopt(NEXT_ID)
    assert send_all(queue) == [batches[1]]
    assert batches[1].base_sequence == 0


def test_sequences_follow_the_largest_with_zero() -> None:
    queue, batches = queue_of(2)
    queue.next_sequence = 0x7FFFFFFF
    send_all(queue)
    assert [batch.base_sequence for batch in batches] == [0x7FFFFFFF, 0]


def test_without_idempotence_batches_have_no_sequence_and_a_failure_resets_nothing() -> None:
    queue = PartitionQueue("t", 0, is_idempotent=False)
    queue.closed.extend([batch_of(b"a"), batch_of(b"b")])
    first, second = send_all(queue)
    assert (read_header(data_of(first)).producer_id, read_header(data_of(first)).base_sequence) == (-1, -1)
    assert queue.judge(first, warmlog.MessageTooLarge("too large")) is Verdict.FAILED
    assert not queue.needs_reset
    assert queue.judge(second, warmlog.BrokerUnavailable("gone")) is Verdict.RETRY
    assert send_all(queue) == [second]


def test_verdicts() -> None:
    def of(error: Exception, *, has_predecessor: bool = False, needs_reset: bool = False) -> Verdict:
        return verdict(error, has_predecessor=has_predecessor, needs_reset=needs_reset)  # type: ignore[arg-type]

    assert of(warmlog.DuplicateSequence("")) is Verdict.DELIVERED
    assert of(warmlog.OutOfOrderSequence("")) is Verdict.FAILED
    assert of(warmlog.OutOfOrderSequence(""), has_predecessor=True) is Verdict.REJECTED
    assert of(warmlog.OutOfOrderSequence(""), needs_reset=True) is Verdict.REJECTED
    assert of(warmlog.UnknownProducerId("")) is Verdict.REJECTED
    assert of(warmlog.InvalidProducerEpoch("")) is Verdict.REJECTED
    assert of(warmlog.MessageTooLarge("")) is Verdict.FAILED


class LogOfOnePartition:
    """Appends as a broker must: once, in the order of sequences, and remembers what it has."""

    def __init__(self) -> None:
        self.epoch = -1
        self.next_sequence = 0
        self.seen: set[tuple[int, int]] = set()
        self.appended: list[ProducerBatch] = []

    def append(self, batch: ProducerBatch, data: bytes) -> str:
        header = read_header(data)
        if self.epoch == -1:  # nothing is known of the producer: any sequence is taken
            self.epoch, self.next_sequence = header.producer_epoch, header.base_sequence
        if header.producer_epoch > self.epoch:
            self.epoch, self.next_sequence, self.seen = header.producer_epoch, 0, set()
        if header.producer_epoch < self.epoch:
            return "fenced"
        if (header.producer_epoch, header.base_sequence) in self.seen:
            return "ok"
        if header.base_sequence != self.next_sequence:
            return "out of order"
        self.seen.add((header.producer_epoch, header.base_sequence))
        self.next_sequence += header.record_count
        self.appended.append(batch)
        return "ok"


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["ok", "lost request", "lost answer", "storage", "refuse", "expire"]), max_size=60))
def test_whatever_happens_each_batch_is_in_the_log_once_and_in_order_or_was_given_up(faults: list[str]) -> None:
    queue, batches = queue_of(12)
    queue.is_established = False
    log = LogOfOnePartition()
    script = deque(faults)
    given_up: list[ProducerBatch] = []
    done: list[ProducerBatch] = []
    epoch = 0
    for _ in range(500):
        if queue.awaits_producer:
            epoch += 1
            queue.adopt((7, epoch))
        sent = send_all(queue)
        if not sent and _is_empty(queue):
            break
        is_connection_lost = False
        for batch in sent:
            fault = script.popleft() if script else "ok"
            is_connection_lost = is_connection_lost or fault in ("lost request", "lost answer")
            if fault == "refuse" and not is_connection_lost:
                given_up.append(batch)
                assert queue.judge(batch, warmlog.InvalidRecord("refused")) is Verdict.FAILED
                continue
            if fault == "storage" and not is_connection_lost:
                queue.judge(batch, warmlog.StorageError("full"))
                continue
            outcome = "" if is_connection_lost and fault != "lost answer" else log.append(batch, data_of(batch))
            if is_connection_lost:
                queue.judge(batch, warmlog.BrokerUnavailable("lost"))
                if fault == "expire":
                    queue.give_up(batch)
                    given_up.append(batch)
            elif outcome == "ok":
                assert queue.judge(batch, ProducedPartition("t", 0, 0)) is Verdict.DELIVERED
                done.append(batch)
            else:
                assert outcome == "out of order"
                assert queue.judge(batch, warmlog.OutOfOrderSequence("")) is Verdict.REJECTED
    assert _is_empty(queue)
    assert set(done) | set(given_up) == set(batches)
    assert len(log.appended) == len(set(log.appended))
    assert set(done) <= set(log.appended)
    kept = [batch for batch in log.appended if batch in done]
    assert kept == sorted(kept, key=batches.index)
