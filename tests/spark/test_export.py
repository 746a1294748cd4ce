"""`warmlog spark-export` against a real broker: each record once, whatever happens in between."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from broker_process import BrokerProcess, port_to_keep
from broker_thread import BrokerThread
from lost_end import create, lose_end, produce
from spark.reading import read_back
from spark.topics import Record, Stored, Topics
from transactions import TransactionalProducer
from warmlog.cli import export_job
from warmlog.errors import BrokerUnavailable, LogTruncated, OffsetOutOfRange, UnknownTopicOrPartition
from warmlog.ranges.discover import Discovery
from warmlog.spark.export.export import Copied, ExportOptions, export_available, export_following
from warmlog.spark.export.manifest import ExportRefused, Manifest
from warmlog.spark.options.read_options import PlanLimits, Retries
from warmlog_protocol.messages import IsolationLevel

DAY_MS = 86_400_000
WAIT_S = 600.0
LONG_WAIT_S = 900.0
"""A session of its own has to start."""


def fill(topics: Topics, topic: str, partition: int, first: int, count: int) -> None:
    """Numbers from `first` on, in batches of 50, two days mixed in each."""
    for start in range(first, first + count, 50):
        records = [
            Record(b"k", b"%d" % number, number % 2 * DAY_MS + number, (("h", b"v"),))
            for number in range(start, start + 50)
        ]
        topics.fill(topic, partition, records)


def options_of(broker: BrokerProcess | BrokerThread, topic: str, path: Path, **options: object) -> ExportOptions:
    limits = PlanLimits(max_records=200)
    return ExportOptions((broker.address,), topic, path, limits=limits, **options)  # type: ignore[arg-type]


def export(spark: SparkSession, options: ExportOptions) -> list[Copied]:
    with Manifest(options.path).locked() as manifest:
        return list(export_available(spark, manifest, options))


def exported(path: Path, *, has_headers: bool = False) -> list[Stored]:
    """Every record that a reader finds, each in the directory of its day."""
    found = []
    for file in sorted(path.glob("date=*/*.parquet")):
        day = file.parent.name.removeprefix("date=")
        for row in pq.ParquetFile(file).read().to_pylist():
            assert row["timestamp"].astimezone(UTC).date().isoformat() == day
            headers = tuple((each["key"], each["value"]) for each in row.get("headers") or ())
            at_ms = round((row["timestamp"] - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
            place = (row["topic"], row["partition"], row["offset"], at_ms, row["timestampType"])
            found.append(Stored(row["key"], row["value"], *place, headers))
    return sorted(found, key=lambda record: (record.partition, record.offset))


def without_headers(stored: Sequence[Stored]) -> list[Stored]:
    return [record._replace(headers=()) for record in stored]


def test_each_record_is_copied_once_over_any_number_of_runs(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("copied", partitions=3)
    fill(topics, "copied", 0, 0, 1_000)
    fill(topics, "copied", 2, 1_000, 100)
    options = options_of(broker, "copied", tmp_path / "out", has_headers=True)
    assert sum(copied.records for copied in export(spark, options)) == 1_100
    assert exported(options.path) == read_back(broker, "copied")
    assert not (options.path / "_warmlog" / "staging").exists()
    assert export(spark, options) == []
    fill(topics, "copied", 1, 2_000, 50)
    assert sum(copied.records for copied in export(spark, options)) == 50
    assert exported(options.path) == read_back(broker, "copied")
    with pytest.raises(ExportRefused, match="holds topic copied with headers: give --headers, or export to another p"):
        export(spark, replace(options, has_headers=False))
    frame = spark.read.parquet(str(options.path))
    assert {str(row.date): row["count"] for row in frame.groupBy("date").count().collect()} == {
        "1970-01-01": 575,
        "1970-01-02": 575,
    }


def test_a_crash_before_or_after_the_commit_costs_nothing_and_repeats_nothing(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.create("crashed")
    fill(topics, "crashed", 0, 0, 300)
    options = options_of(broker, "crashed", tmp_path)

    class Crash(Exception):
        pass

    def crash(*_: object) -> None:
        raise Crash

    for method in ("commit", "_move"):  # nothing listed yet; listed, and not moved yet
        with monkeypatch.context() as patched:
            patched.setattr(Manifest, method, crash)
            with pytest.raises(Crash):
                export(spark, options)
        assert list((tmp_path / "_warmlog" / "staging").rglob("*.parquet"))
        assert exported(tmp_path) == []
    assert export(spark, options) == [], "the second crash came after the commit"
    assert exported(tmp_path) == without_headers(read_back(broker, "crashed"))
    assert not list((tmp_path / "_warmlog").rglob("*.parquet"))


def test_a_log_that_was_cut_below_what_is_copied_and_written_again_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        create(broker, "cut", [b"kept"] * 10)
        produce(broker, "cut", [b"lost"] * 10)
        options = options_of(broker, "cut", tmp_path / "out", fails_on_data_loss=False)
        export(spark, options)
        broker.kill()
        broker.start()
        assert export(spark, options) == [], "another leader epoch alone is no loss"
        produce(broker, "cut", [b"new"])
        assert [copied.records for copied in export(spark, options)] == [1]
        broker.restart()
        produce(broker, "cut", [b"lost"] * 10)
        export(spark, options)
        lose_end(broker, "cut", 25)
        produce(broker, "cut", [b"new"] * 15)
        with pytest.raises(
            LogTruncated, match=r"cut-0: the log was cut at 25 .* read up to 31, .*; export to another path"
        ):
            export(spark, options)
    assert len(exported(options.path)) == 31


def test_what_cannot_be_exported_is_refused_in_words(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("one"), topics.create("other")
    fill(topics, "one", 0, 0, 100)
    options = options_of(broker, "one", tmp_path)
    export(spark, options)
    with (
        Manifest(tmp_path).locked(),
        pytest.raises(ExportRefused, match=r"another export \(process \d+ on .*\) is writ"),
    ):
        export(spark, options)
    with pytest.raises(ExportRefused, match="holds topic one: export other to another path"):
        export(spark, options_of(broker, "other", tmp_path))
    with pytest.raises(ExportRefused, match="holds topic one without headers: leave out --headers, or export to anoth"):
        export(spark, replace(options, has_headers=True))
    topics.delete("one"), topics.create("one")
    with pytest.raises(ExportRefused, match="holds an earlier topic one, which was recreated since"):
        export(spark, options)
    (commit,) = (tmp_path / "_warmlog" / "commits").iterdir()
    commit.write_text("{")
    with pytest.raises(ExportRefused, match=r"0.json is not a commit of an export"):
        export(spark, options)


def test_records_that_retention_took_are_an_error_or_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"segment_bytes": "2000", "retention_bytes": "6000"}
    with BrokerProcess(tmp_path / "broker", log_retention_check_interval_ms=100) as broker:
        with Topics(broker.host, broker.port) as topics:
            topics.create("trimmed", **settings)
            fill(topics, "trimmed", 0, 0, 50)
            path = tmp_path / "out"
            export(spark, options_of(broker, "trimmed", path))
            fill(topics, "trimmed", 0, 50, 2_000)
        deadline = time.monotonic() + WAIT_S
        while (kept := read_kept(broker, "trimmed"))[0] <= 50:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(
            OffsetOutOfRange,
            match=r"trimmed-0 offsets 50 to .*gone.*; to continue without them, run it with --allow-data-loss$",
        ):
            export(spark, options_of(broker, "trimmed", path))
        export(spark, options_of(broker, "trimmed", path, fails_on_data_loss=False))
        offsets = [record.offset for record in exported(path)]
        assert offsets == [*range(50), *range(offsets[50], 2_050)]
        assert offsets[50] >= kept[0]


def test_what_goes_while_it_is_copied_is_told_as_what_had_gone_before(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics.create("going")
    fill(topics, "going", 0, 0, 2_000)
    options = options_of(broker, "going", tmp_path, fails_on_data_loss=False)
    with Manifest(options.path).locked() as manifest:
        rounds = export_available(spark, manifest, options)
        first = next(rounds)
        topics.delete_records("going", 0, first.records + 150)
        (second,) = rounds
        assert (first.lost_offsets, second.lost_offsets) == (0, 150)
        assert manifest.last is not None
        (lost,) = manifest.last.losses
    assert lost.startswith(f"going-0 offsets {first.records} to {first.records + 150}: gone, the log starts at")
    assert caplog.messages == [f"{lost}; skipped, as data loss is allowed"]
    kept = [*range(first.records), *range(first.records + 150, 2_000)]
    assert [record.offset for record in exported(tmp_path)] == kept
    fill(topics, "going", 0, 2_000, 50)
    topics.delete_records("going", 0, 2_050)
    with pytest.raises(OffsetOutOfRange, match="to continue without them"):
        export(spark, replace(options, fails_on_data_loss=True))
    assert export(spark, options) == [Copied(0, 0, 0, lost_offsets=50)]
    assert export(spark, replace(options, fails_on_data_loss=True)) == [], "what is remembered is told once"


def test_committed_records_are_copied_when_their_transaction_has_ended_and_each_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with BrokerThread(tmp_path / "broker") as broker:
        host, port = broker.address.split(":")
        with Topics(host, int(port)) as topics:
            topics.create("t")
            fill(topics, "t", 0, 0, 50)
        producer = TransactionalProducer(broker, "t", 1)
        committed = options_of(broker, "t", tmp_path / "out")
        whole = options_of(broker, "t", tmp_path / "out", isolation=IsolationLevel.READ_UNCOMMITTED)
        producer.send(b"aborted"), producer.abort(), producer.send(b"open")

        def copy(options: ExportOptions) -> list[int]:
            before = {record.offset for record in exported(options.path)}
            export(spark, options)
            return [record.offset for record in exported(options.path) if record.offset not in before]

        assert copy(committed) == list(range(50))
        assert copy(committed) == []
        producer.commit()
        assert copy(committed) == [52]
        producer.send(b"open")
        assert copy(committed) == []
        assert copy(whole) == [54]
        assert copy(committed) == [], "what is copied lies behind the last stable offset, and is not taken for lost"
        producer.send(b"more"), producer.commit()
        assert copy(committed) == [55]
        assert [record.offset for record in exported(tmp_path / "out")] == [*range(50), 52, 54, 55]
        assert copy(replace(whole, path=tmp_path / "whole")) == [*range(51), 52, 54, 55]


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker to be killed; its topic "kept" has 100 records."""
    with BrokerProcess(tmp_path / "broker") as broker:
        with Topics(broker.host, broker.port) as topics:
            topics.create("kept")
            fill(topics, "kept", 0, 0, 100)
        yield broker


def start_and_fill(broker: BrokerProcess) -> None:
    broker.start()
    with Topics(broker.host, broker.port) as topics:
        fill(topics, "kept", 0, 100, 50)


def test_an_export_waits_some_seconds_for_a_broker_that_starts(
    spark: SparkSession, own_broker: BrokerProcess, tmp_path: Path
) -> None:
    own_broker.kill()
    starting = threading.Timer(1.0, start_and_fill, [own_broker])
    starting.start()
    try:
        assert export(spark, options_of(own_broker, "kept", tmp_path / "out"))
    finally:
        starting.join()
    export(spark, options_of(own_broker, "kept", tmp_path / "out"))
    assert [record.offset for record in exported(tmp_path / "out")] == list(range(150))


def test_an_export_without_a_broker_is_an_error_after_some_tries(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("warmlog.spark.export.export.RETRIES", Retries(2, 10))
    nobody = ExportOptions((f"127.0.0.1:{port_to_keep()}",), "t", tmp_path)
    with pytest.raises(BrokerUnavailable, match="is the broker running at"):
        export(spark, nobody)
    assert "retrying, first in" in caplog.text


def test_following_goes_on_when_a_broker_that_was_away_is_back_and_says_so_once(
    spark: SparkSession, own_broker: BrokerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_of(own_broker, "kept", tmp_path / "out")
    with Manifest(options.path).locked() as manifest:
        following = export_following(spark, manifest, options, interval_s=0.1)
        assert next(following).records == 100
        own_broker.kill()
        starting = threading.Timer(1.5, start_and_fill, [own_broker])
        starting.start()
        try:
            assert next(following).records == 50
        finally:
            starting.join()
        said = [record.getMessage() for record in caplog.records if record.name == "warmlog.spark"]
        assert len(said) == 2, said
        assert "is the broker running" in said[0]
        assert said[0].endswith("; retrying every 0.1 s")
        assert said[1] == "the broker responds again: continuing with kept"
        with Topics(own_broker.host, own_broker.port) as topics:
            topics.delete("kept")
        with pytest.raises(UnknownTopicOrPartition, match="topic kept does not exist"):
            next(following)
    assert [record.offset for record in exported(options.path)] == list(range(150))


def read_kept(broker: BrokerProcess, topic: str) -> tuple[int, int]:
    with Discovery([broker.address]) as discovery:
        (state,) = discovery.states(discovery.topics([topic]))
    return state.earliest, state.latest


def command(broker: BrokerProcess, topic: str, path: Path, *arguments: str) -> list[str]:
    given = [sys.executable, "-m", "warmlog", "spark-export", topic, str(path), "--broker", broker.address]
    return [*given, "--master", "local[2]", *arguments]


def test_a_misuse_is_told_before_spark_starts(broker: BrokerProcess, tmp_path: Path) -> None:
    for option, value in (("--task-bytes", "much"), ("--compression", "zip"), ("--isolation", "dirty")):
        done = subprocess.run(command(broker, "t", tmp_path, option, value), capture_output=True, text=True)
        assert done.returncode == 2
        assert option in done.stderr
    path = tmp_path / "never"
    for place, topic, message in (
        (broker.address, "nowhere", "topic nowhere does not exist"),
        (f"127.0.0.1:{port_to_keep()}", "t", "is the broker running"),
    ):
        argv = [sys.executable, "-m", "warmlog", "spark-export", topic, str(path), "--broker", place]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "")
        assert message in " ".join(done.stderr.split())
        assert "starting Spark" not in done.stderr
        assert not path.exists()
    done = subprocess.run(
        [sys.executable, "-m", "warmlog", "spark-export", "t", "s3://bucket/out"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "is on s3: give a directory" in " ".join(done.stderr.split())


def start_following(broker: BrokerProcess, topic: str, path: Path, said: Path) -> "subprocess.Popen[bytes]":
    """The command in a process group of its own, with its JVM and workers; what it says is appended to `said`."""
    with said.open("ab") as output:
        return subprocess.Popen(
            command(broker, topic, path, "--follow", "--interval", "0.2"),
            start_new_session=True,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )


@pytest.mark.slow
def test_the_command_copies_follows_and_can_be_killed_at_any_time(
    broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("followed", partitions=2)
    fill(topics, "followed", 0, 0, 2_000)
    path, said = tmp_path / "out", tmp_path / "said"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    for round_number in range(3):
        following = start_following(broker, "followed", path, said)
        commits = path / "_warmlog" / "commits"
        before = len(list(commits.glob("*.json"))) if commits.exists() else 0
        try:
            deadline = time.monotonic() + LONG_WAIT_S
            while not commits.exists() or len(list(commits.glob("*.json"))) < before + 1 + (round_number > 0):
                assert following.poll() is None, said.read_text()
                assert time.monotonic() < deadline
                fill(topics, "followed", 1, 10_000 + time.monotonic_ns() % 1_000 * 50, 50)
                time.sleep(0.1)
        finally:
            os.killpg(following.pid, signal.SIGKILL)  # the command, its JVM and its workers
            following.wait()
    done = subprocess.run(command(broker, "followed", path, "--json"), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["topic"] == "followed"
    assert exported(path) == without_headers(read_back(broker, "followed"))


@pytest.mark.slow
def test_the_command_follows_over_an_outage_of_the_broker(own_broker: BrokerProcess, tmp_path: Path) -> None:
    path, said = tmp_path / "out", tmp_path / "said"
    following = start_following(own_broker, "kept", path, said)
    try:
        wait_for_commits(path, 1, following)
        own_broker.kill()
        time.sleep(6.0)  # longer than planning that does not follow tries
        assert following.poll() is None, said.read_text()
        start_and_fill(own_broker)
        wait_for_commits(path, 2, following)
    finally:
        os.killpg(following.pid, signal.SIGKILL)
        following.wait()
    assert [record.offset for record in exported(path)] == list(range(150))
    assert said.read_text().count("retrying every 0.2 s") == 1


def wait_for_commits(path: Path, count: int, following: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + LONG_WAIT_S
    while len(list((path / "_warmlog" / "commits").glob("*.json"))) < count:
        assert following.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_spark_submit_runs_the_export(broker: BrokerProcess, topics: Topics, tmp_path: Path) -> None:
    topics.create("submitted", partitions=2)
    fill(topics, "submitted", 1, 0, 500)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    job = Path(export_job.__file__)
    conf = ["--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"]
    options = ["--broker", broker.address, "--isolation", "read_committed"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    for _ in range(2):
        done = subprocess.run(
            [submit, *conf, job, "submitted", tmp_path, "--json", *options],
            capture_output=True,
            text=True,
            env=environment,
            timeout=LONG_WAIT_S,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["path"] == str(tmp_path)
    assert exported(tmp_path) == without_headers(read_back(broker, "submitted"))
