"""Apache Kafka's own code on files that were written here: `make test-kafka`, which fetches its jars.

Kafka's DumpLogSegments must print of them what `warmlog log dump` prints, and find nothing wrong; its classes for the
small files must read what was written.
"""

import base64
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from kafka_jars import NEEDS_KAFKA, run_java
from kafka_sample import copy_sample
from unit.broker.storage.log_room import TINY, LogRoom
from warmlog.cli.app import build_program
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.leader_epochs import pack_epochs
from warmlog_broker.storage.directory.offset_checkpoint import write_offsets
from warmlog_broker.storage.directory.partition_files import pack_partition_metadata
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.verify.rebuild import rebuild_partition
from warmlog_protocol.batch import MAGIC_ROWS, BatchHeader, columns_of, seal_rows
from warmlog_protocol.codec.compression import Codec

KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

pytestmark = NEEDS_KAFKA


def kafka_dumps(files: Sequence[Path], *options: str) -> str:
    """What Kafka's tool prints, once it was found to have nothing to complain about."""
    done = run_java("kafka.tools.DumpLogSegments", *options, "--files", ",".join(map(str, files)))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def we_dump(files: Sequence[Path], *options: str) -> str:
    done = CliRunner().invoke(build_program(), ["log", "dump", *options, *map(str, files)])
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def files_in(directory: Path, kinds: Sequence[str] = KINDS) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.suffix in kinds)


def write_history(room: LogRoom, chance: random.Random) -> None:
    """Producers with and without transactions, some of them aborted, keys, headers, nulls, in all codecs."""
    sequences = dict.fromkeys(range(6), 0)
    is_open: set[int] = set()
    for number in range(200):
        room.now_ms += chance.randrange(0, 30)
        producer = chance.randrange(6)
        if producer in is_open and chance.random() < 0.3:
            room.end_transaction(producer, commits=chance.random() < 0.6, coordinator_epoch=3)
            is_open.discard(producer)
            continue
        values = [b"value %d" % number for _ in range(chance.randrange(1, 4))]
        if producer >= 3:
            room.append_in_transaction(*values, producer=(producer, 0, sequences[producer]), rows=True)
            is_open.add(producer)
        else:
            room.append_bytes(rows_of(values, producer, sequences[producer], room.now_ms, Codec(number % 5)))
        sequences[producer] += len(values)
        if number == 70:
            room.leader_epoch = 4
    for producer in sorted(is_open):
        room.end_transaction(producer, commits=False, coordinator_epoch=3)


def rows_of(values: list[bytes], producer: int, sequence: int, now_ms: int, codec: Codec) -> bytes:
    columns = columns_of(
        [None if sequence % 7 == 0 else value for value in values],
        keys=[b"k%d" % sequence] + [None] * (len(values) - 1),
        timestamps_ms=[now_ms - n for n in range(len(values))],
        headers=[[("a", b"x"), ("b", None)]] + [None] * (len(values) - 1),
    )
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=-1,
        magic=MAGIC_ROWS,
        crc=0,
        attributes=codec,
        last_offset_delta=len(values) - 1,
        base_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        record_count=len(values),
    )
    return seal_rows(header, columns)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a log that was written here and closed."""
    room = LogRoom(tmp_path_factory.mktemp("written"), replace(TINY, segment_bytes=4_000, segment_index_bytes=1_200))
    write_history(room, random.Random(7))
    room.flush()
    room.close()
    assert len(room.files(".log")) >= 4
    assert room.files(".txnindex")
    return room.directory


@pytest.mark.parametrize("options", [(), ("--print-data-log",), ("--deep-iteration",)])
def test_kafkas_tool_prints_the_same_of_a_log_that_was_written_here(written: Path, options: tuple[str, ...]) -> None:
    files = files_in(written)
    assert kafka_dumps(files, *options) == we_dump(files, *options)


def test_indexes_pass_kafkas_checks(written: Path) -> None:
    files = files_in(written, (".index", ".timeindex"))
    assert kafka_dumps(files, "--index-sanity-check") == we_dump(files, "--index-sanity-check")
    assert kafka_dumps(files, "--verify-index-only") == "".join(f"Dumping {path}\n" for path in files)


def test_the_same_holds_for_a_log_that_is_in_use_and_for_files_made_anew(written: Path, tmp_path: Path) -> None:
    room = LogRoom(tmp_path, replace(TINY, segment_bytes=4_000, segment_index_bytes=1_200))
    write_history(room, random.Random(8))
    room.flush()
    files = files_in(room.directory, (".log", ".txnindex", ".snapshot"))
    assert kafka_dumps(files, "--print-data-log") == we_dump(files, "--print-data-log")
    copy = shutil.copytree(written, tmp_path / "copy")
    rebuild_partition(copy, LogConfig(index_interval_bytes=50, segment_index_bytes=4096), with_snapshots=True)
    assert kafka_dumps(files_in(copy)) == we_dump(files_in(copy))


def test_what_kafka_wrote_itself_is_printed_the_same(tmp_path: Path) -> None:
    kafka = copy_sample(tmp_path / "kafka")
    for partition in ("flights-0", "transfers-0"):
        files = files_in(kafka / partition)
        for options in (("--print-data-log",), ("--print-data-log", "--skip-record-metadata"), ("--max-bytes", "9000")):
            assert kafka_dumps(files, *options) == we_dump(files, *options)


def test_kafka_says_the_same_of_wrong_indexes(tmp_path: Path) -> None:
    directory = copy_sample(tmp_path / "kafka") / "transfers-0"
    index, times = directory / f"{0:020d}.index", directory / f"{0:020d}.timeindex"
    content = bytearray(index.read_bytes())
    content[11], content[27] = content[11] + 1, content[27] + 2
    index.write_bytes(content)
    content = bytearray(times.read_bytes())
    content[7], content[19] = content[7] + 1, content[19] - 1
    times.write_bytes(content)
    done = CliRunner().invoke(build_program(), ["log", "dump", str(index), str(times)])
    theirs = run_java("kafka.tools.DumpLogSegments", "--files", f"{index},{times}")
    assert (done.exit_code, done.stdout) == (theirs.returncode, theirs.stdout)
    assert done.stderr.splitlines() == theirs.stderr.splitlines()
    assert "Mismatches in :" in done.stderr
    assert "timestamp mismatch" in done.stderr


def test_kafka_reads_the_small_files(tmp_path: Path) -> None:
    epochs, metadata = tmp_path / "leader-epoch-checkpoint", tmp_path / "partition.metadata"
    epochs.write_bytes(pack_epochs([(0, 0), (3, 250), (4, 1_000_000_000_000)]))
    topic_id = UUID("11fa3d95-8211-4f71-a626-b9ac9313eb5d")
    metadata.write_bytes(pack_partition_metadata(topic_id))
    checkpoint = tmp_path / "replication-offset-checkpoint"
    write_offsets(checkpoint, {TopicPartition("flights", 0): 14_000, TopicPartition("a.b-c_d", 12): 0})
    source = Path(__file__).with_name("ReadFiles.java")
    done = run_java(source, epochs, metadata, checkpoint)
    assert done.returncode == 0, done.stderr
    text = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    lines = done.stdout.splitlines()
    assert lines[:4] == ["epoch 0 from 0", "epoch 3 from 250", "epoch 4 from 1000000000000", f"topic {text}"]
    assert sorted(lines[4:]) == ["a.b-c_d-12 at 0", "flights-0 at 14000"]
