"""Transactions of the blocking producer, against real brokers, and read, process and write exactly once."""

import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

import warmlog
from broker_process import BrokerProcess
from warmlog.blocking import Admin, Consumer, Producer
from warmlog_transport.loop_thread import LoopThread

PATIENCE_S = 300.0


@pytest.fixture
def output(broker: BrokerProcess, topic: str) -> str:
    """The name of a topic of two partitions; `topic` is one, too."""
    name = f"out{uuid4().hex}"
    with Admin(broker.address) as admin:
        for each in (topic, name):
            admin.create_topic(each, partitions=2)
    return name


def named(broker: BrokerProcess, **options: object) -> Producer:
    return Producer(broker.address, transactional_id=f"id-{uuid4().hex}", **options)  # type: ignore[arg-type]


def committed(broker: BrokerProcess, topic: str) -> list[bytes | None]:
    with Consumer(broker.address, topics=[topic], isolation="read_committed") as consumer:
        return sorted(record.value for record in consumer.records(until="latest"))  # type: ignore[type-var]


def test_a_block_commits_what_all_threads_send_in_it(broker: BrokerProcess, output: str) -> None:
    with named(broker) as producer:
        for _ in range(2):
            with producer.transaction():
                threads = [
                    threading.Thread(target=lambda: [producer.send(output, b"x") for _ in range(500)]) for _ in range(4)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                producer.send_many(output, [b"y"] * 10)
        assert committed(broker, output) == [b"x"] * 4000 + [b"y"] * 20


def test_an_error_in_the_block_aborts_and_the_next_one_begins_at_once(broker: BrokerProcess, output: str) -> None:
    with named(broker, linger_ms=60_000) as producer:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError), producer.transaction():  # noqa: PT012 - a transaction
                unsent = [producer.send(output, b"aborted") for _ in range(1000)]
                raise ZeroDivisionError
            for future in unsent:
                assert isinstance(future.exception(), warmlog.TransactionAborted)
            with producer.transaction():
                producer.send(output, b"committed")
    assert committed(broker, output) == [b"committed"] * 3


def test_a_record_that_the_producer_refuses_aborts(broker: BrokerProcess, output: str) -> None:
    with named(broker) as producer:
        with pytest.raises(warmlog.MessageTooLarge), producer.transaction():  # noqa: PT012 - a transaction
            producer.send(output, b"a")
            producer.send(output, bytes(8 * 1024 * 1024))
        with producer.transaction():
            producer.send(output, b"c")
    assert committed(broker, output) == [b"c"]


@pytest.mark.parametrize(("when", "is_done"), [("begin", False), ("begin", True), ("end", False)])
def test_a_producer_goes_on_after_a_block_whose_begin_or_end_was_interrupted(
    broker: BrokerProcess, output: str, monkeypatch: pytest.MonkeyPatch, when: str, *, is_done: bool
) -> None:
    """By Ctrl-C, at the begin before or after the work is done."""
    call = LoopThread.call

    def interrupted(thread: LoopThread, work: Any) -> None:
        if is_done:
            call(thread, work)
        raise KeyboardInterrupt

    with named(broker) as producer:
        transaction = producer.transaction()
        if when == "begin":
            monkeypatch.setattr(LoopThread, "call", interrupted)
        with pytest.raises(KeyboardInterrupt), transaction:  # noqa: PT012 - a transaction
            producer.send(output, b"interrupted")
            monkeypatch.setattr(LoopThread, "call", interrupted)
        monkeypatch.undo()
        with producer.transaction():
            producer.send(output, b"next")
        assert committed(broker, output) == [b"next"]


def test_a_record_that_is_refused_aborts_also_if_its_error_was_caught(broker: BrokerProcess, output: str) -> None:
    with named(broker) as producer:
        with pytest.raises(warmlog.MessageTooLarge), producer.transaction():  # noqa: PT012 - a transaction
            producer.send(output, b"a").result()
            with pytest.raises(warmlog.MessageTooLarge):
                producer.send(output, bytes(8 * 1024 * 1024)).result()
        with producer.transaction():
            producer.send(output, b"b")
    assert committed(broker, output) == [b"b"]


def test_an_end_that_is_interrupted_while_others_hand_over_aborts(
    broker: BrokerProcess, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent later is refused, and not part of a transaction that is aborted some time."""
    call = LoopThread.call

    def hurried(thread: LoopThread, work: Any) -> Any:
        return call(thread, work, 0.3)

    with named(broker) as producer:
        queue = producer._made_queue()
        empty = queue.empty

        async def empty_before_others() -> None:
            await empty()
            await queue.emptying.acquire()  # as the round of another thread does, which waits for memory

        with pytest.raises(TimeoutError), producer.transaction():  # noqa: PT012 - a transaction
            producer.send(output, b"interrupted")
            monkeypatch.setattr(queue, "empty", empty_before_others)
            monkeypatch.setattr(LoopThread, "call", hurried)
        monkeypatch.undo()
        queue.thread.soon(queue.emptying.release)
        with pytest.raises(warmlog.ClientError, match="send within"):
            producer.send(output, b"outside").result()
        with producer.transaction():
            producer.send(output, b"next")
    assert committed(broker, output) == [b"next"]


def test_nothing_is_sent_outside_of_a_transaction_and_one_is_open_at_a_time(broker: BrokerProcess, output: str) -> None:
    with named(broker) as producer:
        with pytest.raises(warmlog.ClientError, match="send within"):
            producer.send(output, b"x").result()
        producer.send(output, b"x")
        with pytest.raises(warmlog.ClientError, match="send within"), producer.transaction():
            pytest.fail("the record that was refused is told before a transaction begins")
        with producer.transaction():
            with pytest.raises(warmlog.ClientError, match="of this producer is open"), producer.transaction():
                pytest.fail("two are open")
            producer.send(output, b"y")
    with Producer(broker.address) as plain, pytest.raises(warmlog.ClientError, match="with a transactional_id"):
        plain.transaction()
    assert committed(broker, output) == [b"y"]


def test_records_that_threads_send_while_it_ends_are_part_of_it_or_refused(broker: BrokerProcess, output: str) -> None:
    """None of them may begin a transaction that no block ends."""
    stop, accepted, rounds, committing = threading.Event(), [], 0, 0

    def send() -> None:
        while not stop.is_set():
            accepted.append(producer.send(output, b"x"))
            if len(accepted) % 50 == 0:
                stop.wait(0.001)

    with named(broker) as producer:
        thread = threading.Thread(target=send)
        thread.start()
        deadline_s = time.monotonic() + PATIENCE_S
        try:
            while rounds < 10 or committing < 3:
                assert time.monotonic() < deadline_s, f"{rounds} blocks, and {committing} of them committed"
                rounds += 1
                try:
                    with producer.transaction():
                        stop.wait(0.01)
                    committing += 1
                except warmlog.ClientError as error:
                    assert "send within" in str(error)  # noqa: PT017 - of records between two blocks
        finally:
            stop.set()
            thread.join()
        errors = [future.exception() for future in accepted]
        with Admin(broker.address) as admin:
            stable = [
                each.last_stable_offset == each.high_watermark for each in admin.describe_topic(output).partitions
            ]
    assert all(stable)
    assert len(committed(broker, output)) == errors.count(None) > 0


def test_records_and_offsets_are_committed_together(broker: BrokerProcess, topic: str, output: str) -> None:
    with Producer(broker.address) as plain:
        plain.send_many(topic, [b"%d" % number for number in range(30)])
    handled, fails = 0, True
    with (
        Consumer(broker.address, topics=[topic], group=uuid4().hex, start="earliest", commit="manual") as consumer,
        named(broker) as producer,
    ):
        while handled < 30:
            batch = next(consumer.batches())
            try:
                with producer.transaction() as transaction:
                    for value in batch.values:
                        producer.send(output, value)
                    transaction.commit_offsets(consumer, batch)
                    if fails:
                        fails = False
                        raise ZeroDivisionError
                handled += len(batch)
            except ZeroDivisionError:
                consumer.seek_to_committed()
        assert sum(offset or 0 for offset in consumer.committed().values()) == 30
        with pytest.raises(warmlog.ClientError, match="has ended"):
            transaction.commit_offsets(consumer, {f"{topic}-0": 1})
    assert committed(broker, output) == sorted(b"%d" % number for number in range(30))


def test_records_are_not_committed_without_the_offsets_although_the_error_was_caught(
    broker: BrokerProcess, topic: str, output: str
) -> None:
    with (
        Consumer(broker.address, topics=[topic], group=uuid4().hex, commit="manual") as consumer,
        named(broker) as producer,
    ):
        with pytest.raises(warmlog.StaleMemberEpoch), producer.transaction() as transaction:  # noqa: PT012
            producer.send(output, b"without offsets")
            with suppress(warmlog.StaleMemberEpoch):
                transaction.commit_offsets(consumer, {f"{output}-0": 1})
        with producer.transaction():
            producer.send(output, b"next")
    assert committed(broker, output) == [b"next"]


RECORDS = 400
PROGRAM = """
import sys, time
from warmlog.blocking import Consumer, Producer
address, source, output, name = sys.argv[1:]
options = {"group": "etl", "start": "earliest", "commit": "manual", "session_timeout_ms": 6_000}
with (
    Consumer(address, topics=[source], **options) as consumer,
    Producer(address, transactional_id=name) as producer,
):
    for record in consumer.records():
        with producer.transaction() as transaction:
            producer.send(output, record.value).result()
            time.sleep(0.01)
            transaction.commit_offsets(consumer, record)
        print(record.offset, flush=True)
"""


def begin(broker: BrokerProcess, *names: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", PROGRAM, broker.address, *names], stdout=subprocess.PIPE)


def written(broker: BrokerProcess, topic: str) -> list[bytes | None]:
    with Consumer(broker.address, topics=[topic], start="earliest", isolation="read_committed") as consumer:
        return [record.value for record in consumer.records(until="latest")]


def test_a_member_that_is_killed_leaves_no_record_out_and_none_twice(broker: BrokerProcess) -> None:
    source, output, names = f"in{uuid4().hex}", f"out{uuid4().hex}", [uuid4().hex, uuid4().hex]
    values = [b"%d" % number for number in range(RECORDS)]
    with Admin(broker.address) as admin, Producer(broker.address) as plain:
        for topic in (source, output):
            admin.create_topic(topic, partitions=4)
        for number, value in enumerate(values):
            plain.send(source, value, partition=number % 4)
    members = [begin(broker, source, output, name) for name in names]
    try:
        assert members[0].stdout is not None
        for _ in range(20):
            assert members[0].stdout.readline()
        members[0].kill()
        members[0].wait()
        assert len(written(broker, output)) < RECORDS, "it was killed on the way"
        members.append(begin(broker, source, output, names[0]))
        deadline_s = time.monotonic() + PATIENCE_S
        while len(found := written(broker, output)) < RECORDS:
            assert time.monotonic() < deadline_s, f"{len(found)} of {RECORDS}"
            assert [member.poll() for member in members[1:]] == [None, None]
            time.sleep(0.2)
    finally:
        for member in members:
            member.kill()
            member.communicate()
    assert sorted(written(broker, output)) == sorted(values)  # type: ignore[type-var]
