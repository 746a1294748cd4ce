"""Ctrl-C at any moment of the blocking clients' calls, by a program that goes on afterwards, as a notebook does."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from warmlog.blocking import Admin, Consumer, Producer
from warmlog.blocking.consumer import ItemIterator
from warmlog.testing import EmbeddedBroker, embedded
from warmlog_transport.loop_thread import LoopThread

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in")
"""Python loses an interruption that comes while the callback of a weak reference runs, and says so."""

RECORDS = 20_000
WITHIN_S = 0.003


@pytest.fixture(scope="module")
def filled() -> Iterator[EmbeddedBroker]:
    with embedded() as broker, Admin(broker.address) as admin:
        admin.create_topic("t", partitions=2)
        with Producer(broker.address, batch_bytes=1000) as producer:
            for partition in range(2):
                producer.send_many("t", [b"x"] * RECORDS, partition=partition)
        yield broker


def arm(state: SimpleNamespace) -> None:
    """Interrupt some time within the next milliseconds, if `is_armed` is still set then; not each time."""
    if state.dice.random() < 0.8:
        signal.setitimer(signal.ITIMER_REAL, state.dice.uniform(0.00001, WITHIN_S))
        state.is_armed = True


@contextmanager
def interruptions() -> Iterator[SimpleNamespace]:
    """Let `arm` raise KeyboardInterrupt."""
    state = SimpleNamespace(is_armed=False, count=0, dice=random.Random(1))

    def interrupt(*_: object) -> None:
        if state.is_armed:
            state.is_armed = False
            state.count += 1
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield state
    finally:
        state.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def places_of_batch(batch: Any) -> list[tuple[int, int]]:
    return [(batch.partition, offset) for offset in batch.offsets]


def places_of_table(table: Any) -> list[tuple[int, int]]:
    return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


READERS = {
    "batches": (lambda consumer: consumer.batches(until="latest"), places_of_batch),
    "records": (lambda consumer: consumer.records(until="latest"), lambda each: [(each.partition, each.offset)]),
    "arrow": (lambda consumer: consumer.arrow(until="latest"), places_of_table),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_was_not_delivered_is_read_again(filled: EmbeddedBroker, reader: str) -> None:
    begin, places_of = READERS[reader]
    read: dict[int, list[int]] = {0: [], 1: []}
    with Consumer(filled.address, topics=["t"], max_bytes=20_000) as consumer, interruptions() as interrupting:
        is_over = False
        while not is_over:
            try:
                items = begin(consumer)
                arm(interrupting)
                for item in items:
                    interrupting.is_armed = False
                    for partition, offset in places_of(item):
                        read[partition].append(offset)
                    arm(interrupting)
                interrupting.is_armed, is_over = False, True
            except KeyboardInterrupt:
                pass
            assert consumer.positions() == {f"t-{number}": len(read[number]) for number in read}
        assert interrupting.count
    assert read == {0: list(range(RECORDS)), 1: list(range(RECORDS))}


def test_a_loop_that_goes_on_misses_no_record(filled: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with Consumer(filled.address, partitions=["t-0"]) as consumer:
        records = consumer.records()
        thread = consumer._running()
        plain = thread.call

        def interrupted(work: Any) -> None:
            monkeypatch.setattr(thread, "call", plain)
            thread.call(work)
            thread.soon(lambda: time.sleep(0.2))  # what is given back waits for that
            raise KeyboardInterrupt

        read = [next(records).offset]
        monkeypatch.setattr(thread, "call", interrupted)
        with suppress(KeyboardInterrupt):
            while True:
                read.append(next(records).offset)
        read += [next(records).offset for _ in range(3)]
        assert read == list(range(len(read)))


def test_a_table_that_was_not_delivered_leaves_the_positions(filled: EmbeddedBroker) -> None:
    rows = 0
    with Consumer(filled.address, topics=["t"]) as consumer, interruptions() as interrupting:
        while not rows:
            try:
                arm(interrupting)
                table = consumer.to_arrow()
                interrupting.is_armed = False
                rows = table.num_rows
            except KeyboardInterrupt:
                assert set(consumer.positions().values()) == {0}
        assert interrupting.count
    assert rows == 2 * RECORDS


def test_a_table_that_was_not_delivered_is_read_again_with_the_partitions_that_a_group_assigned_meanwhile(
    filled: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(thread: LoopThread, work: Any) -> None:
        """As when Ctrl-C comes after the work is done, and before its result is delivered."""
        call(thread, work)
        raise KeyboardInterrupt

    call = LoopThread.call
    with Consumer(filled.address, topics=["t"], group="tables", commit="manual") as consumer:
        tables = ItemIterator(consumer, lambda: consumer._client._table("latest", None))
        with monkeypatch.context() as patch:
            patch.setattr(LoopThread, "call", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(tables)
        assert consumer.positions() == {"t-0": 0, "t-1": 0}
        assert consumer.to_arrow().num_rows == 2 * RECORDS


SENDING = """
import signal, sys, time
from warmlog.blocking import *

def interrupt(*_):
    if is_armed:
        raise KeyboardInterrupt

is_armed, sure, number = False, [], 0
producer = Producer(sys.argv[1]).start()
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
end = time.monotonic() + 3
while time.monotonic() < end:
    try:
        for _ in range(100):
            number += 1
            is_armed = True
            sent = producer.send("sent", b"%d" % number)
            is_armed = False
            sure.append(b"%d" % number)
    except KeyboardInterrupt:
        is_armed = False
signal.setitimer(signal.ITIMER_REAL, 0)
producer.close()
with Consumer(sys.argv[1], topics=["sent"]) as consumer:
    values = [record.value for record in consumer.records(until="latest")]
assert set(sure) <= set(values)
assert len(set(values)) == len(values)
print("nothing is lost")
"""


def test_a_send_that_is_interrupted_blocks_no_later_one(filled: EmbeddedBroker) -> None:
    with Admin(filled.address) as admin:
        admin.create_topic("sent")
    ended = subprocess.run([sys.executable, "-c", SENDING, filled.address], capture_output=True, text=True, timeout=180)
    assert ended.stdout == "nothing is lost\n", ended.stderr


SIGNALLED = """
import signal, sys, time
from warmlog.blocking import Producer

def handle(*_):
    global handled
    producer.send("signalled", b"handler")
    if handled % 10 == 0:
        producer.flush()
    handled += 1
    if handled < 200:
        signal.setitimer(signal.ITIMER_REAL, 0.0003 * (handled % 10 + 1))

sent = handled = 0
with Producer(sys.argv[1]) as producer:
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    while handled < 200:
        producer.send("signalled", b"main")
        sent += 1
print(sent + handled)
"""


def test_a_signals_handler_may_send_and_flush_while_the_program_sends(filled: EmbeddedBroker) -> None:
    with Admin(filled.address) as admin:
        admin.create_topic("signalled")
        program = [sys.executable, "-c", SIGNALLED, filled.address]
        ended = subprocess.run(program, capture_output=True, text=True, timeout=180)
        ends = admin.describe_topic("signalled").partitions
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) == ends[0].high_watermark
