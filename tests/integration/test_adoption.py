"""What Kafka wrote, taken over and served: every record as Kafka's own tool prints it, through crashes and appends."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import warmlog
from broker_process import BrokerProcess
from fake_kafka import FakeKafka, FakeTopic
from forked import run_forked
from integration.command_line import CommandLine, Done, environment, error_line
from kafka_sample import PARTITIONS, SAMPLE, Dumped, copy_sample, dumped_records
from warmlog_broker.metadata.log_file import read_state
from warmlog_broker.storage.directory.dir_lock import exclusive_lock
from warmlog_broker.tools.adoption.adopt import KEEPS_EVERYTHING
from warmlog_protocol.batch import iter_batches

TRANSFERS = SAMPLE / "transfers-0" / "print-data-log.dump"
FLIGHTS_TAIL = SAMPLE / "flights-0" / "print-data-log-head.dump"
FIRST_FLIGHT = 5468


def run(*arguments: object) -> Done:
    return run_forked("warmlog", ["log", *arguments], environment())


def checksums(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module", params=["--link", None], ids=["linked", "copied"])
def adopted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that serves what was taken over. Kafka's directory is as it was when all tests are through."""
    root = tmp_path_factory.mktemp("adoption")
    kafka = copy_sample(root / "kafka")
    before = checksums(kafka)
    options = [request.param] if request.param else []
    done = run("adopt", kafka, "--data-dir", root / "data", *options)
    assert done.returncode == 0, done.stderr
    assert b"flights-0: offsets 5468 to 14000" in done.stdout
    assert (b"1 file linked" in done.stdout) == bool(options)
    assert run("verify", root / "data").returncode == 0
    with BrokerProcess(root / "data") as broker:
        yield broker
    assert checksums(kafka) == before


async def read(broker: BrokerProcess, topic: str, isolation: str = "read_uncommitted") -> list[Dumped]:
    async with warmlog.Consumer(broker.address, topics=[topic], start="earliest", isolation=isolation) as consumer:
        return [
            Dumped(each.offset, each.timestamp_ms, each.key, each.value, tuple(name for name, _ in each.headers))
            async for each in consumer.records(until="latest")
        ]


def flights_in_files() -> list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    """All records of the sample's log files, decoded one batch at a time."""
    found = []
    for path in sorted((SAMPLE / "flights-0").glob("*.log")):
        for batch in iter_batches(path.read_bytes()):
            found += list(zip(batch.offsets(), batch.keys(), batch.values(), batch.headers(), strict=True))
    return found


async def test_all_records_are_those_that_kafkas_tool_prints(adopted: BrokerProcess) -> None:
    assert await read(adopted, "transfers") == dumped_records(TRANSFERS)
    flights = await read(adopted, "flights")
    assert [flight.offset for flight in flights] == list(range(FIRST_FLIGHT, 14_000))
    tail = dumped_records(FLIGHTS_TAIL)
    assert len(tail) > 10
    assert flights[tail[0].offset - FIRST_FLIGHT :][: len(tail)] == tail


async def test_records_of_aborted_transactions_are_hidden_from_committed_readers(adopted: BrokerProcess) -> None:
    committed = dumped_records(TRANSFERS, is_committed=True)
    assert 0 < len(committed) < len(dumped_records(TRANSFERS))
    assert await read(adopted, "transfers", "read_committed") == committed


async def test_arrow_and_headers_are_the_same(adopted: BrokerProcess) -> None:
    pytest.importorskip("pyarrow")
    rows: list[dict[str, object]] = []
    async with warmlog.Consumer(adopted.address, topics=["flights"], start="earliest") as consumer:
        async for batch in consumer.arrow(until=14_000):
            rows += batch.to_pylist()
    expected = flights_in_files()
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [record[:3] for record in expected]
    async with warmlog.Consumer(adopted.address, topics=["flights"], start="earliest") as consumer:
        headers = [record.headers async for record in consumer.records(until=14_000)]
    assert headers == [record[3] for record in expected]
    assert sum(map(bool, headers)) > 2_000


async def test_times_are_found_and_offsets_are_told(adopted: BrokerProcess) -> None:
    tail = dumped_records(FLIGHTS_TAIL)
    async with warmlog.Admin(adopted.address) as admin:
        assert (await admin.list_offsets("flights", at="earliest"))[0].offset == FIRST_FLIGHT
        found = (await admin.list_offsets("flights", at=tail[0].timestamp_ms))[0]
        assert found.timestamp_ms >= tail[0].timestamp_ms
        assert found.offset <= tail[0].offset
        description = await admin.describe_topic("flights")
        assert description.configs["retention.ms"].value == "-1"
        assert description.partitions[0].leader_epoch == 1  # Kafka's was 0
        assert str(description.topic_id) == "11fa3d95-8211-4f71-a626-b9ac9313eb5d"


async def test_it_goes_on_with_new_records_and_survives_kill_9(adopted: BrokerProcess) -> None:
    before = {topic: await read(adopted, topic) for topic in ("flights", "transfers")}
    async with warmlog.Producer(adopted.address) as producer:
        for topic, records in before.items():
            placed = await producer.send_many(topic, [b"%d" % n for n in range(500)], partition=0)
            assert placed.count == 500
            assert records[-1].offset < 14_000
    adopted.kill()
    adopted.start()
    for topic, records in before.items():
        again = await read(adopted, topic)
        assert again[: len(records)] == records
        assert [record.value for record in again[len(records) :]] == [b"%d" % n for n in range(500)]
    adopted.restart()
    done = run("verify", "--json", adopted.data_dir)
    assert json.loads(done.stdout)["findings"] == []
    assert [record.offset for record in await read(adopted, "transfers")][-1] == 375 + 499


async def test_a_verification_beside_the_running_broker_finds_nothing(adopted: BrokerProcess) -> None:
    async with warmlog.Producer(adopted.address) as producer:
        for _ in range(3):
            await producer.send_many("transfers", [b"x" * 100] * 2_000, partition=0)
            done = run("verify", adopted.data_dir)
            assert done.returncode == 0, done.stdout
    assert {path.name for path in adopted.data_dir.iterdir() if path.is_dir()} == set(PARTITIONS)


async def test_deleting_the_topics_leaves_kafkas_files_alone(adopted: BrokerProcess) -> None:
    async with warmlog.Admin(adopted.address) as admin:
        await admin.delete_topic("flights")
        await admin.delete_topic("transfers")
        assert await admin.list_topics() == []


KAFKAS_OUTPUT = """\
All configs for topic flights are:
  cleanup.policy=compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact, X:log.y=delete}
  retention.ms=604800000 sensitive=false synonyms={DEFAULT_CONFIG:log.retention.hours=168}
  flush.ms=9223372036854775807 sensitive=false synonyms={}
  follower.replication.throttled.replicas= sensitive=false synonyms={}
Dynamic configs for topic elsewhere are:
  retention.bytes=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.bytes=5}
"""
AS_JSON = json.dumps(
    {
        "flights": {
            "cleanup.policy": "compact",
            "retention.ms": 604800000,
            "follower.replication.throttled.replicas": "",
        },
        "elsewhere": {"retention.bytes": 5},
    }
)


@pytest.mark.parametrize("content", [KAFKAS_OUTPUT, AS_JSON], ids=["kafka-configs.sh", "JSON"])
def test_topics_get_the_settings_in_a_file_and_others_keep_everything(tmp_path: Path, content: str) -> None:
    kafka, file = copy_sample(tmp_path / "kafka"), tmp_path / "configs"
    file.write_text(content)
    done = run("adopt", kafka, "--data-dir", tmp_path / "data", "--topic-configs", file)
    assert done.returncode == 0, done.stderr
    said = done.stderr.decode()
    assert "flights: settings that warmlog does not have are left out: follower.replication.throttled.replicas" in said
    assert "are off until you set them: transfers" in said.replace("\n", " ")
    assert "topics that were not taken over: elsewhere" in said
    state = read_state(tmp_path / "data" / "metadata.log")
    assert state.topics["flights"].settings == {
        "cleanup.policy": "compact",
        "retention.bytes": "-1",
        "retention.ms": "604800000",
    }
    assert state.topics["transfers"].settings == KEEPS_EVERYTHING


def test_settings_are_stored_as_every_version_reads_them_and_what_stays_off_is_told(tmp_path: Path) -> None:
    kafka, file = copy_sample(tmp_path / "kafka"), tmp_path / "configs"
    file.write_text('{"flights": {"segment.bytes": "64MiB", "cleanup.policy": "delete, compact"}, "transfers": {}}')
    done = run("adopt", kafka, "--data-dir", tmp_path / "data", "--topic-configs", file)
    said = " ".join(done.stderr.decode().split())
    assert "until you set retention.ms: flights" in said
    assert "are off until you set them: transfers" in said
    settings = read_state(tmp_path / "data" / "metadata.log").topics["flights"].settings
    assert settings == KEEPS_EVERYTHING | {"segment.bytes": "67108864", "cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"flights": {"retention.ms": "soon"}}', "topic flights: retention.ms: 'soon' is not allowed"),
        ('{"flights": 5}', "topic flights: expected"),
        ('{"flights": {"retention.ms": null}}', "retention.ms=None is not text"),
        ('{"flights"', "configs: "),
        (
            "Dynamic configs for topic flights are:\n"
            "  flush.ms=864000001 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:flush.ms=864000001}",
            "topic flights: flush.ms: '864000001' is not allowed",
        ),
        ("retention.ms=5", "line 1 is 'retention.ms=5': expected JSON, or the output of"),
    ],
)
def test_settings_that_are_not_allowed_are_refused_before_a_copy(tmp_path: Path, content: str, named: str) -> None:
    kafka, file = copy_sample(tmp_path / "kafka"), tmp_path / "configs"
    file.write_text(content)
    done = run("adopt", kafka, "--data-dir", tmp_path / "data", "--topic-configs", file)
    assert done.returncode == 2
    assert named in " ".join(done.stderr.decode().replace("│", " ").split())
    assert not (tmp_path / "data").exists()


def test_without_a_file_the_command_that_sets_them_later_is_named(tmp_path: Path) -> None:
    done = run("adopt", copy_sample(tmp_path / "kafka"), "--data-dir", tmp_path / "data")
    assert b"warmlog topic alter" in done.stderr
    assert b"--topic-configs" in done.stderr


def test_a_running_kafka_gives_the_settings(tmp_path: Path) -> None:
    kafka, data_dir = copy_sample(tmp_path / "kafka"), tmp_path / "data"
    topics = {"flights": FakeTopic(settings={"retention.ms": "60000", "preallocate": "true"}), "transfers": FakeTopic()}
    with FakeKafka(topics, cluster_id="MkU3OEVBNTcwNTJENDM2Qg") as server:
        done = run("adopt", kafka, "--data-dir", data_dir, "--kafka", server.address)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.decode().split())
    assert "are off until you set them: transfers warmlog: Kafka has only defaults for these topics" in said
    assert "compare them" not in said
    settings = {name: topic.settings for name, topic in read_state(data_dir / "metadata.log").topics.items()}
    assert settings == {
        "flights": {**KEEPS_EVERYTHING, "retention.ms": "60000", "preallocate": "true"},
        "transfers": KEEPS_EVERYTHING,
    }


def test_a_kafka_that_uses_the_directory_is_asked_and_then_waited_for(tmp_path: Path) -> None:
    kafka, data_dir = copy_sample(tmp_path / "kafka"), tmp_path / "data"
    topics = {"flights": FakeTopic(), "transfers": FakeTopic(settings={"retention.bytes": "5"})}
    command = CommandLine("127.0.0.1:1")
    with exclusive_lock(kafka), FakeKafka(topics, cluster_id="MkU3OEVBNTcwNTJENDM2Qg") as server:
        adopting = command.start("log", "adopt", kafka, "--data-dir", data_dir, "--kafka", server.address)
        assert adopting.stderr is not None
        assert f"waiting: {kafka} is in use: process {os.getpid()}" in adopting.stderr.readline().decode()
    out, err = adopting.communicate(timeout=180)
    assert adopting.returncode == 0, err
    assert b"flights-0: offsets 5468 to 14000" in out
    assert read_state(data_dir / "metadata.log").topics["transfers"].settings["retention.bytes"] == "5"


def test_a_kafka_that_is_not_there_is_one_line_before_anything_is_copied(tmp_path: Path) -> None:
    kafka, data_dir = copy_sample(tmp_path / "kafka"), tmp_path / "data"
    assert "cannot ask the Kafka at 127.0.0.1:1: " in error_line(
        run("adopt", kafka, "--data-dir", data_dir, "--kafka", "127.0.0.1:1")
    )
    assert not data_dir.exists()
