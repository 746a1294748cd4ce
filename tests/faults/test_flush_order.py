"""Acknowledged means on disk: the order of system calls of a broker on a real file system."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.flush_order import Call, FlushTracedBroker, can_trace, early_answers, read_calls
from waiting import wait_until
from warmlog_protocol.messages import ProducePartition, ProduceRequest
from wire_client import WireClient, batch_of

DEADLINE_S = 40
needs_strace = pytest.mark.skipif(not can_trace(), reason="strace is missing, or may not trace here")
MakeBroker = Callable[..., FlushTracedBroker]


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[MakeBroker]:
    started: list[FlushTracedBroker] = []

    def start(**settings: object) -> FlushTracedBroker:
        broker = FlushTracedBroker(tmp_path / "data", environment=None, **settings)
        broker.trace = tmp_path / "trace"
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.kill()


def name_of(client: WireClient) -> str:
    """As the broker sees it."""
    host, port = client.socket.getsockname()[:2]
    return f"{host}:{port}"


def directory(broker: FlushTracedBroker, partition: int, topic: str = "t") -> str:
    return str(broker.data_dir / f"{topic}-{partition}")


def names(calls: list[Call], path: str) -> list[str]:
    """The calls that concern `path`, repetitions left out."""
    found = [call.name for call in calls if path in (call.target, call.client)]
    return [name for number, name in enumerate(found) if number == 0 or found[number - 1] != name]


@needs_strace
def test_a_record_is_written_and_synced_and_then_answered(start_broker: MakeBroker) -> None:
    broker = start_broker()
    with WireClient(broker.address) as client:
        client.create_topic("t")
        with WireClient(broker.address) as producer:
            for number in range(3):
                producer.produce("t", batch_of([b"%d" % number]))
            assert broker.terminate() == 0, broker.output
            calls, log = broker.calls(), f"{directory(broker, 0)}/{0:020d}.log"
            assert early_answers(calls, {name_of(producer): [directory(broker, 0)]}) == []
    assert names(calls, log)[:2] == ["pwritev2", "fdatasync"]
    assert len([call for call in calls if call.target == log and call.name == "fdatasync"]) >= 3


@needs_strace
def test_the_name_of_a_new_segment_is_synced_before_a_record_in_it_is_answered(start_broker: MakeBroker) -> None:
    broker = start_broker()
    with WireClient(broker.address) as client, WireClient(broker.address) as producer:
        client.create_topic("t", segment_bytes="1024")
        for _ in range(5):
            producer.produce("t", batch_of([b"x" * 700]))
        assert broker.terminate() == 0, broker.output
        calls = broker.calls()
        assert early_answers(calls, {name_of(producer): [directory(broker, 0)]}) == []
        without_directories = [call for call in calls if call.target != directory(broker, 0)]
        found = early_answers(without_directories, {name_of(producer): [directory(broker, 0)]})
        assert "openat" in "".join(found), "a missing sync of the directory would not be noticed"
    assert len(list((broker.data_dir / "t-0").glob("*.log"))) == 5


@needs_strace
def test_one_syncfs_for_many_partitions_comes_before_the_answer(start_broker: MakeBroker) -> None:
    broker, partitions = start_broker(flush_syncfs_files=8), 12
    with WireClient(broker.address) as client, WireClient(broker.address) as producer:
        client.create_topic("t", partitions=partitions)
        batch = batch_of([b"x"])
        wanted = [ProducePartition("t", number, len(batch)) for number in range(partitions)]
        for _ in range(3):
            producer.call(ProduceRequest(-1, 20_000, wanted), batch * partitions)
        assert broker.terminate() == 0, broker.output
        calls = broker.calls()
        places = {name_of(producer): [directory(broker, number) for number in range(partitions)]}
        assert early_answers(calls, places) == []
        serving = [call for call in calls if call.begin < max(each.begin for each in calls if each.client in places)]
        assert [call.name for call in serving].count("syncfs") >= 3
        assert not [call for call in serving if call.name == "fdatasync" and "/t-" in call.target]
        assert early_answers([call for call in calls if call.name != "syncfs"], places)


@needs_strace
def test_of_many_producers_none_is_answered_before_a_sync_that_began_after_its_write(start_broker: MakeBroker) -> None:
    broker, count = start_broker(flush_syncfs_files=8), 16
    with WireClient(broker.address) as client:
        client.create_topic("t", partitions=count)
    producers = [WireClient(broker.address) for _ in range(count)]
    try:
        for _ in range(6):
            ids = [producer.send_produce("t", batch_of([b"x"]), partition=n) for n, producer in enumerate(producers)]
            for producer, correlation_id in zip(producers, ids, strict=True):
                producer.produced(correlation_id)
        assert broker.terminate() == 0, broker.output
        places = {name_of(producer): [directory(broker, number)] for number, producer in enumerate(producers)}
    finally:
        for producer in producers:
            producer.close()
    calls = broker.calls()
    assert len([call for call in calls if call.client in places]) >= 6 * count
    assert early_answers(calls, places) == []


@needs_strace
def test_with_write_caching_the_answer_comes_first_and_the_sync_follows_by_itself(start_broker: MakeBroker) -> None:
    broker = start_broker()
    with WireClient(broker.address) as client, WireClient(broker.address) as producer:
        client.create_topic("t", write_caching="true", flush_ms="50")
        producer.produce("t", batch_of([b"x"]))
        log = f"{directory(broker, 0)}/{0:020d}.log"
        wait_until(lambda: "fdatasync" in names(broker.calls(), log), DEADLINE_S)
        calls = broker.calls()
        places = {name_of(producer): [directory(broker, 0)]}
        assert early_answers(calls, places), "the answer waited for the disk"
    assert names(calls, log) == ["pwritev2", "fdatasync"]


# The check itself, on traces that were made up


CLIENT = "127.0.0.1:5"
ANSWER = f'1 write(9<TCP:[127.0.0.1:1->{CLIENT}]>, ""..., 21) = 21'
WRITE = "1 pwritev2(8</d/t-0/0.log>, [...], 2, 0, 0) = 99"
SYNC = "2 fdatasync(8</d/t-0/0.log>) = 0"
CREATE = '1 openat(AT_FDCWD</home>, "/d/t-0/0.log", O_RDWR|O_CREAT|O_EXCL|O_CLOEXEC, 0644) = 8</d/t-0/0.log>'
SYNC_DIRECTORY = "2 fsync(7</d/t-0>) = 0"
SYNCFS = "2 syncfs(7</d>) = 0"


@pytest.mark.parametrize(
    "lines",
    [
        [WRITE, SYNC, ANSWER],
        [WRITE, SYNCFS, ANSWER],
        [CREATE, WRITE, SYNC, SYNC_DIRECTORY, ANSWER],
        [CREATE, WRITE, SYNCFS, ANSWER],
        ['1 mkdir("/d/t-0", 0777) = 0', "1 fsync(7</d>) = 0", WRITE, SYNC, ANSWER],
        ['1 mkdir("/d/t-0", 0777) = -1 EEXIST (File exists)', WRITE, SYNC, ANSWER],
        [
            WRITE,
            "2 fdatasync(8</d/t-0/0.log> <unfinished ...>",
            "1 write(3<pipe>, 1) = 1",
            "2 <... fdatasync resumed>) = 0",
            ANSWER,
        ],
        [WRITE, SYNC, ANSWER, WRITE],
        [CREATE, ANSWER],
        [WRITE.replace("t-0", "t-1"), ANSWER],
        [WRITE, ANSWER.replace(CLIENT, "127.0.0.1:6")],
    ],
)
def test_an_order_that_is_right_passes(lines: list[str]) -> None:
    assert early_answers(read_calls(lines), {CLIENT: ["/d/t-0"]}) == []


@pytest.mark.parametrize(
    "lines",
    [
        [WRITE, ANSWER, SYNC],
        [SYNC, WRITE, ANSWER],
        [WRITE, SYNC, WRITE, ANSWER],
        [WRITE, SYNC.replace("/0.log", "/1.log"), ANSWER],
        [WRITE, SYNC.replace("= 0", "= -1 EIO (Input/output error)"), ANSWER],
        [WRITE, SYNCFS.replace("= 0", "= -1 EIO (Input/output error)"), ANSWER],
        [CREATE, WRITE, SYNC, ANSWER],
        [CREATE, SYNC_DIRECTORY.replace("t-0", "t-1"), WRITE, SYNC, ANSWER],
        ['1 mkdir("/d/t-0", 0777) = 0', SYNC_DIRECTORY, WRITE, SYNC, ANSWER],
        ["2 fdatasync(8</d/t-0/0.log> <unfinished ...>", WRITE, "2 <... fdatasync resumed>) = 0", ANSWER],
        [WRITE, SYNCFS.replace("/d", "/e"), ANSWER],
        [WRITE, "2 syncfs(7</d> <unfinished ...>", ANSWER, "2 <... syncfs resumed>) = 0"],
    ],
)
def test_an_answer_before_its_sync_is_found(lines: list[str]) -> None:
    assert len(early_answers(read_calls(lines), {CLIENT: ["/d/t-0"]})) == 1
