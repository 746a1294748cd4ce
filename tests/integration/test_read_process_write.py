"""Read, process and write exactly once: two members of a group as processes, one of which is killed on the way."""

import subprocess
import sys
import time
from uuid import uuid4

from broker_process import BrokerProcess
from warmlog.blocking import Admin, Consumer, Producer

RECORDS, PATIENCE_S = 400, 90.0
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
