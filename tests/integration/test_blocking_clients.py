"""The blocking clients against a real broker: from threads, loops, forks, interrupted and abandoned programs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from warmlog.blocking import Admin, Consumer, Producer
from warmlog.errors import BrokerUnavailable, ClientClosed, MessageTooLarge, TopicAlreadyExists
from warmlog.testing import embedded

INTERRUPTED_S = 20.0
"""An interrupted program ends within a second; the rest is the start of Python on a busy machine."""


def create(broker: BrokerProcess, topic: str, partitions: int = 1) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(topic, partitions=partitions)


def values_of(broker: BrokerProcess, topic: str) -> list[bytes | None]:
    with Consumer(broker.address, topics=[topic]) as consumer:
        return [record.value for record in consumer.records(until="latest")]


NO_MORE_THREADS = """
import atexit, threading
def refuse(thread): raise RuntimeError("can't create new thread at interpreter shutdown")
atexit.register(setattr, threading.Thread, "start", refuse)
"""
"""As Python 3.12 is when a program ends: what is registered last is called first."""


def program(code: str, broker: BrokerProcess, topic: str, **options: object) -> "subprocess.Popen[str]":
    """A Python program with `address`, `topic` and the blocking clients."""
    head = f"import os, signal, sys\nfrom warmlog.blocking import *\naddress, topic = {broker.address!r}, {topic!r}\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )  # type: ignore[call-overload, no-any-return]


def test_what_is_sent_is_read_by_batch_record_and_arrow(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    with Producer(broker.address) as producer:
        sent = [producer.send(topic, b"%d" % number, key=b"k", headers={"h": b"x"}) for number in range(10)]
        assert [one.result().offset for one in sent] == list(range(10))
        assert producer.send_many(topic, [b"10", b"11"]).ranges == {0: [range(10, 12)]}
    assert sent[3].result().offset == 3, "known after the end, too"
    with Consumer(broker.address, topics=[topic]) as consumer:
        assert [len(batch) > 0 for batch in consumer.batches(until=5)]
        assert consumer.position(topic, 0) == 5
        assert [record.offset for record in consumer.records(until="latest")] == list(range(5, 12))
        consumer.seek(topic, 0, 8)
        records = consumer.records(until="latest")
        assert next(records).offset == 8
        assert consumer.positions() == {f"{topic}-0": 9}
        consumer.seek_to("-2")
        assert [record.value for record in records] == [b"10", b"11"]
        assert consumer.assignment == [(topic, 0)]
        consumer.seek_to_beginning()
        assert sum(batch.num_rows for batch in consumer.arrow(until="latest")) == 12
        assert consumer.to_arrow().num_rows == 0
    with Consumer(broker.address, topics=[topic], start=json.loads(f'{{"{topic}-0": 11}}')) as consumer:
        assert [record.value for record in consumer.records(until="latest")] == [b"11"]


def test_threads_share_a_producer_and_each_keeps_its_order(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic, partitions=3)
    with Producer(broker.address, buffer_bytes=256 * 1024) as producer, ThreadPoolExecutor(8) as pool:

        def send(thread: int) -> None:
            for number in range(3000):
                producer.send(topic, b"%d" % number, key=b"thread-%d" % thread)

        list(pool.map(send, range(8)))
    found: dict[bytes | None, list[int]] = {}
    with Consumer(broker.address, topics=[topic]) as consumer:
        for record in consumer.records(until="latest"):
            found.setdefault(record.key, []).append(int(record.value or b""))
    assert found == {b"thread-%d" % thread: list(range(3000)) for thread in range(8)}


def test_errors_come_to_the_caller_or_with_the_next_flush(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    with Admin(broker.address) as admin, pytest.raises(TopicAlreadyExists):
        admin.create_topic(topic)
    with Producer(broker.address) as producer:
        with pytest.raises(TypeError, match="encode it first"):
            producer.send(topic, "text")  # type: ignore[arg-type]
        large = producer.send(topic, bytes(5_000_000))
        with pytest.raises(MessageTooLarge):
            large.result()
        assert isinstance(large.exception(), MessageTooLarge)
        producer.flush()
        producer.send(topic, bytes(5_000_000))
        with pytest.raises(MessageTooLarge):
            producer.flush()
        producer.flush()
        done = threading.Event()
        producer.send(topic, b"x").add_done_callback(lambda sent: sent.done() and done.set())
        assert done.wait(10)
    with pytest.raises(ClientClosed, match="closed"):
        producer.send(topic, b"x")
    with pytest.raises(ClientClosed, match="not started"):
        Producer(broker.address).flush()
    with pytest.raises(BrokerUnavailable), Admin("127.0.0.1:1"):
        pass
    producer.close()


async def test_a_running_event_loop_does_not_matter(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    with Producer(broker.address) as producer:
        assert producer.send(topic, b"x").result().offset == 0
    assert await asyncio.to_thread(values_of, broker, topic) == [b"x"]


FORKS_WITH_THREADS = "ignore:This process:DeprecationWarning"
"""Python warns of such a fork from 3.12 on."""


def test_a_forked_child_is_told_to_create_its_own(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    code = """
producer = Producer(address, linger_ms=5000).start()
producer.send(topic, b"parent")
if os.fork() == 0:
    try:
        producer.send(topic, b"child")
    except Exception as error:
        print(error, flush=True)
        producer.close()
        del producer
        with Producer(address) as own:
            own.send(topic, b"own").result()
        sys.exit(0)
    os._exit(1)
_, status = os.wait()
assert status == 0, status
producer.close()
"""
    process = program(code, broker, topic, env={**os.environ, "PYTHONWARNINGS": FORKS_WITH_THREADS})
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert "create a client in each process" in output
    assert not errors
    assert values_of(broker, topic) == [b"own", b"parent"]


def test_a_program_that_ends_without_closing_sends_everything_and_is_warned(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    code = "producer = Producer(address).start()\nfor number in range(1000): producer.send(topic, b'%d' % number)"
    process = program(code, broker, topic, env={**os.environ, "PYTHONWARNINGS": "always"})
    _, errors = process.communicate(timeout=100)
    assert (process.returncode, "unclosed warmlog.blocking.Producer" in errors) == (0, True), errors
    assert len(values_of(broker, topic)) == 1000


def test_a_handler_of_logging_may_close_its_producer_as_the_program_ends(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    code = """
import logging
class Handler(logging.Handler):
    producer = Producer(address).start()
    def emit(self, record): self.producer.send(topic, self.format(record).encode())
    def close(self): self.producer.close()
logging.getLogger("orders").addHandler(Handler())
logging.getLogger("orders").warning("late")
"""
    _, errors = program(code, broker, topic).communicate(timeout=100)
    assert errors == ""
    assert values_of(broker, topic) == [b"late"]


@pytest.mark.parametrize("no_more_threads", ["", NO_MORE_THREADS], ids=["threads", "no more threads"])
def test_clients_that_are_closed_as_the_program_ends_connect_again_by_a_hosts_name(no_more_threads: str) -> None:
    code = """
import atexit, sys
from warmlog.blocking import Consumer, Producer
def give_up(partitions):
    consumer.commit()
    print(consumer.committed(partitions))
consumer = Consumer(sys.argv[1], topics=["read"], group="ending", commit="manual", on_revoked=give_up).start()
atexit.register(consumer.close)
list(consumer.records(until="latest"))
producer = Producer(sys.argv[1]).start()
atexit.register(producer.close)
print(producer.send("t", b"one").result().offset, flush=True)
sys.stdin.readline()
producer.send("t", b"two")
"""
    with embedded() as broker:
        with Admin(broker.address) as admin, Producer(broker.address) as producer:
            admin.create_topic("t")
            admin.create_topic("read")
            producer.send("read", b"x")
        address = broker.address.replace("127.0.0.1", "localhost")
        with subprocess.Popen(
            [sys.executable, "-c", code + no_more_threads, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "0\n"
            broker.kill()
            broker.start()
            try:
                committed, _ = process.communicate("\n", timeout=100)
            finally:
                process.kill()
        assert committed == "{('read', 0): 1}\n"
        with Consumer(broker.address, topics=["t"]) as consumer:
            assert [record.value for record in consumer.records(until="latest")] == [b"one", b"two"]


@pytest.mark.parametrize("no_more_threads", ["", NO_MORE_THREADS], ids=["threads", "no more threads"])
def test_a_consumer_open_at_exit_leaves_its_group(broker: BrokerProcess, topic: str, no_more_threads: str) -> None:
    create(broker, topic)
    code = """
consumer = Consumer(address, topics=[topic], group="ending", on_revoked=print).start()
list(consumer.records(until="latest"))
"""
    process = program(code + no_more_threads, broker, topic)
    given_up, errors = process.communicate(timeout=100)
    assert (process.returncode, given_up) == (0, f"[('{topic}', 0)]\n"), errors


def test_a_client_that_is_collected_ends_its_thread(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    before = threading.active_count()
    producer = Producer(broker.address).start()
    producer.send(topic, b"x")
    with pytest.warns(ResourceWarning, match="unclosed"):
        del producer
    assert threading.active_count() == before
    assert values_of(broker, topic) == [b"x"]


def test_a_client_that_is_collected_in_an_event_loop_does_not_hold_it_up(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    before = set(threading.enumerate())

    async def drop() -> float:
        producer = Producer(broker.address).start()
        producer.send(topic, b"x")
        os.kill(broker.pid, signal.SIGSTOP)  # so that it cannot be closed
        began = time.monotonic()
        del producer
        return time.monotonic() - began

    try:
        with pytest.warns(ResourceWarning, match="unclosed"):
            assert asyncio.run(drop()) < 10
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert values_of(broker, topic) == [b"x"]


@pytest.mark.parametrize(
    "waiting",
    [
        "for batch in Consumer(address, topics=[topic]).start().batches(): pass",
        "with Producer(address) as p:\n  p.send(topic, b'x')\n  stop()\n  p.send(topic, b'y').result()",
        "with Producer(address) as p:\n  stop()\n  p.send(topic, b'y')",
        "with Producer(address, buffer_bytes=9000) as p:\n  stop()\n  while True: p.send(topic, bytes(1000))",
    ],
    ids=["reading", "result", "closing", "full buffer"],
)
def test_ctrl_c_ends_a_call_that_waits(tmp_path: Path, waiting: str) -> None:
    with BrokerProcess(tmp_path) as broker:
        create(broker, "t")
        code = f"def stop(): os.kill({broker.pid}, signal.SIGSTOP)\nprint('begins', flush=True)\n{waiting}"
        process = program(code, broker, "t")
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begins\n"
            time.sleep(1.5)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=100)
            taken_s = time.monotonic() - began
        finally:
            process.kill()
            process.wait()
            os.kill(broker.pid, signal.SIGCONT)
    assert "KeyboardInterrupt" in errors
    assert taken_s < INTERRUPTED_S
    if "Producer" in waiting:
        assert "acknowledged" in errors or "not sent" in errors
