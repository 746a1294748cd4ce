"""`warmlog log dump` prints what Kafka's own tool printed for the same files, and records of `__groups` as JSON."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from click.testing import CliRunner, Result

from kafka_sample import SAMPLE
from other_user import copy_open_to_all, directory_open_to_all
from warmlog.cli.app import build_program
from warmlog_broker.coordinator.framework.decision import PartitionId, Record
from warmlog_broker.coordinator.group.decisions.records import (
    GroupKey,
    GroupValue,
    KnownTopic,
    OffsetKey,
    OffsetValue,
    ShareKey,
    TargetKey,
    TargetValue,
    pack_share,
    put,
    remove,
)
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.validation import check_batch
from warmlog_protocol.batch import (
    encode_batch,
    placement_prefix,
    read_batch,
    read_header,
    stamp_append_time,
)
from warmlog_protocol.batch.header import CRC_START

PRINTED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
LOG = "00000000000000000000.log"


def dump(*arguments: object, cwd: Path = SAMPLE) -> Result:
    """The command, with its output."""
    with contextlib.chdir(cwd):
        return CliRunner().invoke(build_program(), ["log", "dump", *map(str, arguments)])


def expected(name: str) -> str:
    return (SAMPLE / name).read_text()


def batch_at(offset: int, *values: bytes, **fields: object) -> bytes:
    """A batch as the broker writes it: placed at `offset`, in leader epoch 5."""
    batch = encode_batch(values, timestamps_ms=1_000 + offset, **fields)  # type: ignore[arg-type]
    return placement_prefix(read_header(batch), offset, 5) + batch[CRC_START:]


def printed_files() -> list[str]:
    files = (path for suffix in PRINTED for path in sorted(SAMPLE.glob(f"*/*{suffix}")))
    return [str(path.relative_to(SAMPLE)) for path in files if path.with_name(path.name + ".dump").exists()]


def test_every_file_is_printed_as_kafka_prints_it() -> None:
    files = printed_files()
    assert len(files) >= 10
    done = dump(*files)
    assert done.exit_code == 0
    assert done.stdout == "".join(expected(f"{name}.dump") for name in files)
    assert done.stderr == ""


def test_records_and_transaction_markers_are_printed_as_kafka_prints_them() -> None:
    assert dump("--print-data-log", f"transfers-0/{LOG}").stdout == expected("transfers-0/print-data-log.dump")
    head = expected("flights-0/print-data-log-head.dump")
    assert dump("--print-data-log", "flights-0/00000000000000011639.log").stdout.startswith(head)


def test_deep_iteration_prints_records_without_their_data() -> None:
    lines = dump("--deep-iteration", f"transfers-0/{LOG}").stdout.splitlines()
    full = expected("transfers-0/print-data-log.dump").splitlines()
    assert lines == [line.partition(" key: ")[0].partition(" payload: ")[0] for line in full]


def test_max_bytes_ends_before_the_batch_that_does_not_fit() -> None:
    whole = dump(f"transfers-0/{LOG}").stdout.splitlines()
    assert dump("--max-bytes", 84 * 3, f"transfers-0/{LOG}").stdout.splitlines() == whole[: 2 + 3]
    assert dump("--max-bytes", 84 * 3 - 1, f"transfers-0/{LOG}").stdout.splitlines() == whole[: 2 + 2]


def test_verified_indexes_are_not_printed_and_sane_ones_pass() -> None:
    index = "transfers-0/00000000000000000000.index"
    assert dump("--verify-index-only", index).stdout == f"Dumping {index}\n"
    assert dump("--index-sanity-check", index).stdout == f"Dumping {index}\n{index} passed sanity check.\n"


def test_a_file_that_nobody_may_write_is_dumped_and_nothing_is_created(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE / "transfers-0", tmp_path / "transfers-0")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for path in before:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        done = dump(f"transfers-0/{LOG}", "transfers-0/00000000000000000000.timeindex", cwd=tmp_path)
    finally:
        (tmp_path / "transfers-0").chmod(0o755)
    assert done.exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_index_without_its_log_is_printed_and_nothing_is_created(tmp_path: Path) -> None:
    name = "00000000000000000000.timeindex"
    shutil.copy(SAMPLE / "transfers-0" / name, tmp_path)
    done = dump(name, cwd=tmp_path)
    assert done.stdout.splitlines()[1:] == expected(f"transfers-0/{name}.dump").splitlines()[1:]
    assert "not in the same directory" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_columnar_batches_are_magic_3_with_the_same_fields(tmp_path: Path) -> None:
    batches = [
        batch_at(0, b"a", b"b", keys=[b"k", None], producer_id=7, producer_epoch=1, base_sequence=10),
        stamp_append_time(batch_at(2, b"\xff", headers=[[("h", b"x"), ("i", None)]]), 5_000),
    ]
    (tmp_path / LOG).write_bytes(b"".join(batches))
    lines = dump("--print-data-log", LOG, cwd=tmp_path).stdout.splitlines()
    first = read_header(batches[0])
    assert lines[2] == (
        "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: 10 lastSequence: 11 producerId: 7 producerEpoch: 1 "
        "partitionLeaderEpoch: 5 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty "
        f"position: 0 CreateTime: 1000 size: {first.size_bytes} magic: 3 compresscodec: none crc: {first.crc} "
        "isvalid: true"
    )
    assert (
        lines[3] == "| offset: 0 CreateTime: 1000 keySize: 1 valueSize: 1 sequence: 10 headerKeys: [] key: k payload: a"
    )
    assert lines[4] == "| offset: 1 CreateTime: 1000 keySize: -1 valueSize: 1 sequence: 11 headerKeys: [] payload: b"
    assert f"position: {first.size_bytes} LogAppendTime: 5000 " in lines[5]
    assert lines[6] == (
        "| offset: 2 LogAppendTime: 5000 keySize: -1 valueSize: 1 sequence: -1 headerKeys: [h,i]"
        " payload: \N{REPLACEMENT CHARACTER}"
    )


def test_files_are_taken_as_kafkas_tool_takes_them_too() -> None:
    files = [f"transfers-0/{LOG}", "transfers-0/00000000000000000000.index"]
    assert dump("--files", ",".join(files)).stdout == dump(*files).stdout
    assert dump("--files", "missing.log").exit_code == 2
    assert dump().exit_code == 2


def test_without_metadata_only_keys_and_payloads_are_left() -> None:
    lines = dump("--print-data-log", "--skip-record-metadata", f"transfers-0/{LOG}").stdout.splitlines()
    full = expected("transfers-0/print-data-log.dump").splitlines()
    records = [line for line in full if line.startswith("| offset: ")]
    rest = [f"|{line[line.index(' key: ') :]}" if " key: " in line else "" for line in records]
    assert [line for line in lines[2:] if not line.startswith("baseOffset: ")] == rest
    assert "" in rest  # transaction markers have nothing else


def test_a_null_key_without_metadata_leaves_the_payload(tmp_path: Path) -> None:
    (tmp_path / LOG).write_bytes(batch_at(0, b"a", None))
    lines = dump("--print-data-log", "--skip-record-metadata", LOG, cwd=tmp_path).stdout.splitlines()
    assert lines[3:] == [" payload: a", ""]


def test_decoders_show_json_msgpack_and_base64(tmp_path: Path) -> None:
    (tmp_path / LOG).write_bytes(batch_at(0, b'{"a": [1, 2]}', b"{", keys=[b"\x81\xa1b\xc3", b"\xc1"]))
    lines = dump("--key-decoder", "msgpack", "--value-decoder", "json", LOG, cwd=tmp_path).stdout.splitlines()
    assert lines[3].endswith(' key: {"b":true} payload: {"a":[1,2]}')
    assert lines[4].endswith(" key: 0xc1 payload: 0x7b")
    assert dump("--value-decoder", "base64", LOG, cwd=tmp_path).stdout.splitlines()[4].endswith(" payload: ew==")


def test_decoders_show_numbers_and_hex(tmp_path: Path) -> None:
    (tmp_path / LOG).write_bytes(batch_at(0, (258).to_bytes(4, "big"), b"ab", keys=[b"\xff" * 8, b"\x01"]))
    lines = dump("--key-decoder", "long", "--value-decoder", "integer", LOG, cwd=tmp_path).stdout.splitlines()
    assert lines[3].endswith(" key: -1 payload: 258")
    assert lines[4].endswith(" key: 0x01 payload: 0x6162")


def test_a_damaged_batch_is_marked_and_what_follows_is_printed(tmp_path: Path) -> None:
    first, second = batch_at(0, b"a"), batch_at(1, b"b")
    (tmp_path / LOG).write_bytes(first[:-1] + b"X" + second)
    lines = dump(LOG, cwd=tmp_path).stdout.splitlines()
    assert lines[2].endswith("isvalid: false")
    assert lines[3].endswith("isvalid: true")


def test_a_torn_tail_is_counted_and_explained(tmp_path: Path) -> None:
    first, second = batch_at(0, b"a"), batch_at(1, b"b")
    (tmp_path / LOG).write_bytes(first + second[:-3])
    done = dump(LOG, cwd=tmp_path)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == f"Found {len(second) - 3} invalid bytes at the end of {LOG}"
    assert f"the batch should have {len(second)} bytes, but only {len(second) - 3} are left" in done.stderr


def test_a_log_ends_where_the_zeros_of_its_preallocation_begin(tmp_path: Path) -> None:
    first = batch_at(0, b"a")
    (tmp_path / LOG).write_bytes(first + bytes(5_000))
    done = dump(LOG, cwd=tmp_path)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[3:] == [f"Found 5000 invalid bytes at the end of {LOG}"]
    assert f"position {len(first)}: zeros" in done.stderr


def test_what_follows_an_offset_that_goes_back_is_printed(tmp_path: Path) -> None:
    batches = [batch_at(5, b"a"), batch_at(3, b"b"), batch_at(4, b"c")]
    (tmp_path / LOG).write_bytes(b"".join(batches))
    lines = dump(LOG, cwd=tmp_path).stdout.splitlines()
    assert [line.split()[1] for line in lines[2:]] == ["5", "3", "4"]


def test_offsets_that_do_not_follow_on_each_other_are_told(tmp_path: Path) -> None:
    (tmp_path / LOG).write_bytes(batch_at(0, b"a") + batch_at(5, b"b"))
    done = dump("--deep-iteration", LOG, cwd=tmp_path)
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [f"Non-consecutive offsets in {tmp_path / LOG}", "  0 is followed by 5"]


def test_index_entries_that_lead_elsewhere_are_told(tmp_path: Path) -> None:
    first, second = batch_at(0, b"a"), batch_at(1, b"b")
    (tmp_path / LOG).write_bytes(first + second)
    entries = [(1, len(first)), (2, 9_999)]
    (tmp_path / "00000000000000000000.index").write_bytes(
        b"".join(offset.to_bytes(4, "big") + position.to_bytes(4, "big") for offset, position in entries)
    )
    done = dump("00000000000000000000.index", cwd=tmp_path)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1:] == [f"offset: 1 position: {len(first)}", "offset: 2 position: 9999"]
    assert done.stderr.splitlines() == [
        f"Mismatches in :{tmp_path / '00000000000000000000.index'}",
        "  Index offset: 2, log offset: -1",
    ]


def test_time_index_entries_that_are_wrong_are_told(tmp_path: Path) -> None:
    (tmp_path / LOG).write_bytes(batch_at(0, b"a") + batch_at(1, b"b") + batch_at(2, b"c", b"d"))
    entries = [(1_000, 0), (999, 1), (1_002, 2)]
    name = "00000000000000000000.timeindex"
    (tmp_path / name).write_bytes(
        b"".join(time.to_bytes(8, "big") + offset.to_bytes(4, "big") for time, offset in entries)
    )
    done = dump(name, cwd=tmp_path)
    assert done.stderr.splitlines() == [
        f"Found timestamp mismatch in :{tmp_path / name}",
        "  Index timestamp: 999, log timestamp: 1001",
        f"Found out of order timestamp in :{tmp_path / name}",
        "  Index timestamp: 999, Previously indexed timestamp: 1000",
        "The following indexed offsets are not found in the log.",
        "Indexed offset: 2, found log offset: 3",
    ]


def test_the_zeros_of_an_index_in_use_are_not_printed(tmp_path: Path) -> None:
    first = batch_at(0, b"a")
    (tmp_path / LOG).write_bytes(first + batch_at(1, b"b"))
    entry = (1).to_bytes(4, "big") + len(first).to_bytes(4, "big")
    (tmp_path / "00000000000000000000.index").write_bytes(entry + bytes(8 * 100))
    done = dump("00000000000000000000.index", cwd=tmp_path)
    assert done.stdout.splitlines()[1:] == [f"offset: 1 position: {len(first)}"]
    assert done.stderr == ""


def test_checkpoints_and_metadata_are_printed(tmp_path: Path) -> None:
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n2\nflights 0 14000\nflights 1 13500\n")
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n1\n3 250\n")
    metadata = SAMPLE / "flights-0" / "partition.metadata"
    done = dump("recovery-point-offset-checkpoint", "leader-epoch-checkpoint", metadata, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "Dumping recovery-point-offset-checkpoint",
        "topic: flights partition: 0 offset: 14000",
        "topic: flights partition: 1 offset: 13500",
        "Dumping leader-epoch-checkpoint",
        "epoch: 3 startOffset: 250",
        f"Dumping {metadata}",
        "topicId: 11fa3d95-8211-4f71-a626-b9ac9313eb5d",
    ]


def test_a_damaged_snapshot_is_told_and_what_follows_is_printed(tmp_path: Path) -> None:
    name = "00000000000000000375.snapshot"
    content = bytearray((SAMPLE / "transfers-0" / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / name).write_bytes(content)
    done = dump(name, SAMPLE / "transfers-0" / name, cwd=tmp_path)
    assert done.exit_code == 0
    assert done.stderr.startswith(f"{name}: the snapshot is damaged: expected CRC ")
    assert done.stdout.splitlines()[2:] == expected(f"transfers-0/{name}.dump").splitlines()[1:]


def test_an_index_entry_of_a_batch_above_the_limit_is_not_checked(tmp_path: Path) -> None:
    shutil.copy(SAMPLE / "transfers-0" / LOG, tmp_path)
    shutil.copy(SAMPLE / "transfers-0" / "00000000000000000000.index", tmp_path)
    done = dump("--max-message-size", 10, "--verify-index-only", "00000000000000000000.index", cwd=tmp_path)
    assert done.exit_code == 0
    assert "more than --max-message-size = 10" in done.stderr
    assert "Mismatches" not in done.stderr


def test_unknown_files_are_ignored_aloud_and_missing_ones_are_misuse(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    done = dump("notes.txt", cwd=tmp_path)
    assert (done.exit_code, done.stderr) == (0, "Ignoring unknown file notes.txt\n")
    assert dump("missing.log", cwd=tmp_path).exit_code == 2


@pytest.mark.parametrize("name", ["x.log", "x.index"])
def test_a_segment_file_with_another_kind_of_name_fails(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    done = dump(name, cwd=tmp_path)
    assert done.exit_code == 1
    assert "expected a name that is the base offset" in done.stderr


# What Kafka's own tests of DumpLogSegments assert (DL), on a log that is in use: 60 records in 4 batches

RECORDS_A_BATCH = (10, 15, 20, 15)


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Log]:
    log = Log.open(
        tmp_path / "t-0",
        key=TopicPartition("t", 0),
        config=LogConfig.from_settings({"index.interval.bytes": "128", "segment.index.bytes": "4096"}),
        open_files=OpenFiles(),
        now_ms=10_000,
    )
    number = 0
    for count in RECORDS_A_BATCH:
        numbers = range(number, number + count)
        batch = encode_batch(
            [b"message value %d" % n for n in numbers],
            keys=[b"message key %d" % n for n in numbers],
            timestamps_ms=[10_000 + n * 10 for n in numbers],
            headers=[[(f"headerKey{n}", b"x")] for n in numbers],
        )
        log.appender.append_as_leader(check_batch(memoryview(batch), 100_000), leader_epoch=0, now_ms=20_000)
        number += count
    yield log
    log.close()


def test_records_are_printed_only_when_asked_for_dl_01(open_log: Log) -> None:
    assert [line[:10] for line in dump(LOG, cwd=open_log.local.directory).stdout.splitlines()[2:]] == ["baseOffset"] * 4
    for options in (
        ["--print-data-log"],
        ["--print-data-log", "--deep-iteration"],
        ["--value-decoder", "string"],
        ["--key-decoder", "string", "--value-decoder", "string"],
    ):
        lines = dump(*options, LOG, cwd=open_log.local.directory).stdout.splitlines()
        records = [line for line in lines if line.startswith("| offset:")]
        assert len(records) == sum(RECORDS_A_BATCH)
        for number, line in enumerate(records):
            assert f"headerKeys: [headerKey{number}] key: message key {number} payload: message value {number}" in line


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
def test_padded_indexes_of_a_log_in_use_have_no_mismatches_dl_02(open_log: Log, kind: str) -> None:
    path = open_log.local.directory / f"{0:020d}{kind}"
    assert path.stat().st_size in (4096, 4092)
    for index in open_log.local.active.indexes.loaded():
        index.write_out()  # as the broker does now and then
    done = dump("--verify-index-only", path)
    assert (done.exit_code, done.stderr) == (0, "")
    assert dump(path).stdout.count("offset: ") == len(RECORDS_A_BATCH) - 1


def test_half_of_the_bytes_are_half_of_the_batches_dl_04(open_log: Log) -> None:
    data = (open_log.local.directory / LOG).read_bytes()
    half = read_header(data).size_bytes
    half += read_header(data, half).size_bytes
    lines = dump("--max-bytes", half + 10, LOG, cwd=open_log.local.directory).stdout.splitlines()
    assert len(lines) == 2 + len(RECORDS_A_BATCH) // 2


def test_what_is_printed_of_batches_and_records_is_what_the_log_holds_dl_05(open_log: Log) -> None:
    lines = dump("--deep-iteration", LOG, cwd=open_log.local.directory).stdout.splitlines()[2:]
    data, position = (open_log.local.directory / LOG).read_bytes(), 0
    while position < len(data):
        batch = read_batch(data, position)
        header = batch.header
        line = lines.pop(0)
        for text in (
            f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.record_count}",
            f"position: {position} CreateTime: {header.max_timestamp_ms} size: {header.size_bytes} magic: 3",
            "isTransactional: false isControl: false",
            "compresscodec: none",
        ):
            assert text in line
        for offset, time_ms in zip(batch.offsets(), batch.timestamps_ms(), strict=True):
            line = lines.pop(0)
            assert line.startswith(f"| offset: {offset} CreateTime: {time_ms} keySize: ")
            assert not any(word in line for word in ("baseOffset", "isTransactional", "compresscodec", "magic"))
        position += header.size_bytes
    assert not lines


def test_the_second_file_of_a_log_says_where_it_starts_dl_07(tmp_path: Path) -> None:
    name = f"{1:020d}.log"
    (tmp_path / name).write_bytes(batch_at(1, b"a"))
    assert dump(name, cwd=tmp_path).stdout.splitlines()[1] == "Log starting offset: 1"


AS_NOBODY = """
import os, sys
from warmlog.cli.app import build_program
dump = lambda: build_program()(["log", "dump", *sys.argv[1:]], standalone_mode=False)
dump()  # whatever is imported late is imported now: the interpreter may lie where nobody may read
print("now as nobody", flush=True)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
dump()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_who_may_only_read_dumps_everything() -> None:
    with directory_open_to_all() as directory:
        copy = copy_open_to_all(SAMPLE, directory / "sample")
        before = states_of(copy)
        names = printed_files()
        done = subprocess.run([sys.executable, "-c", AS_NOBODY, *names], cwd=copy, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.partition("now as nobody\n")[2] == "".join(expected(f"{name}.dump") for name in names)
        assert states_of(copy) == before


def states_of(directory: Path) -> dict[Path, tuple[int, int]]:
    """What would change if a file were written to, or made."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in directory.rglob("*")}


ORDERS = UUID("00112233-4455-6677-8899-aabbccddeeff")
OFFSET = OffsetKey("etl", ORDERS.bytes, 3)


def lines(directory: Path, *records: Record, options: tuple[str, ...] = ("--print-data-log",)) -> list[str]:
    """What is printed of each record in a log of this directory."""
    directory.mkdir(exist_ok=True)
    values = [record.value for record in records]
    batch = batch_at(0, *values, keys=[record.key for record in records])  # type: ignore[arg-type]
    (directory / LOG).write_bytes(batch)
    done = dump(*options, directory / LOG)
    assert done.exit_code == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("| ")]


def documents(line: str) -> tuple[object, object]:
    key, _, payload = line.partition(" key: ")[2].partition(" payload: ")
    return json.loads(key), json.loads(payload) if payload else None


def test_offsets_and_targets_are_shown_by_their_fields(tmp_path: Path) -> None:
    target = TargetValue(7, "uniform", (KnownTopic(ORDERS.bytes, "orders", 4),))
    offset, tombstone, known, share = lines(
        tmp_path / "__groups-12",
        put(OFFSET, OffsetValue(40, 2, "note", "orders", 1_700_000_000_000)),
        remove(OFFSET),
        put(TargetKey("etl"), target),
        put(ShareKey("etl", "m-1"), pack_share([PartitionId(ORDERS.bytes, 1), PartitionId(ORDERS.bytes, 0)])),
    )
    key = {"kind": "offset", "group": "etl", "topic_id": str(ORDERS), "partition": 3}
    value = {
        "offset": 40,
        "leader_epoch": 2,
        "metadata": "note",
        "topic": "orders",
        "committed_at_ms": 1_700_000_000_000,
    }
    assert documents(offset) == (key, value)
    assert documents(tombstone) == (key, None)
    topics = [{"topic_id": str(ORDERS), "name": "orders", "partitions": 4}]
    assert documents(known) == (
        {"kind": "target", "group": "etl"},
        {"epoch": 7, "assignor": "uniform", "topics": topics},
    )
    assert documents(share)[1] == {"partitions": [[str(ORDERS), [0, 1]]]}


def test_a_record_of_a_newer_version_or_that_is_damaged_is_shown_as_it_is(tmp_path: Path) -> None:
    encode = msgspec.msgpack.encode
    newer, unknown, damaged, foreign = lines(
        tmp_path / "__groups-0",
        Record(encode([1, "etl"]), encode([99, 5])),
        Record(encode([77, "etl"]), encode([1, 2])),
        Record(encode([1, "etl"]), encode([1, "not a number"])),
        Record(b"\xff\xfe\xfd", b"\xc1"),
    )
    assert [documents(line) for line in (newer, unknown, damaged)] == [
        ([1, "etl"], [99, 5]),
        ([77, "etl"], [1, 2]),
        ([1, "etl"], [1, "not a number"]),
    ]
    assert foreign.endswith("key: 0xfffefd payload: 0xc1")


@pytest.mark.parametrize("options", [("--print-data-log", "--value-decoder", "hex"), ("--key-decoder", "string")])
def test_a_decoder_that_is_named_is_used(tmp_path: Path, options: tuple[str, ...]) -> None:
    (line,) = lines(tmp_path / "__groups-0", put(GroupKey("etl"), GroupValue(3, -1)), options=options)
    assert "kind" not in line


def test_other_topics_are_not_decoded_but_a_file_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = put(GroupKey("etl"), GroupValue(3, -1))
    (line,) = lines(tmp_path / "__groups-0", record)
    assert documents(line) == ({"kind": "group", "group": "etl"}, {"epoch": 3, "empty_since_ms": -1, "owner": ""})
    done = dump("--print-data-log", LOG, cwd=tmp_path / "__groups-0")
    assert line in done.stdout.splitlines()
    shutil.copytree(tmp_path / "__groups-0", tmp_path / "groups-0")
    assert '"kind"' not in dump("--print-data-log", tmp_path / "groups-0" / LOG).stdout


def test_a_directory_is_dumped_segment_by_segment_or_at_one_offset() -> None:
    logs = sorted((SAMPLE / "flights-0").glob("*.log"))
    assert len(logs) > 1
    whole = dump("--deep-iteration", "flights-0").stdout
    assert whole == "".join(dump("--deep-iteration", f"flights-0/{path.name}").stdout for path in logs)
    records = [line for line in whole.splitlines() if line.startswith("| offset: ")]
    for record in (records[0], records[len(records) // 2], records[-1]):
        offset = int(record.split()[2])
        heading, start, batch, found = dump("flights-0", "--offset", offset).stdout.splitlines()
        assert found == record
        assert int(start.rpartition(" ")[2]) <= int(batch.split()[1]) <= offset <= int(batch.split()[3])
        assert heading.endswith(f"{int(start.rpartition(' ')[2]):020d}.log")
    missing = dump("flights-0", "--offset", 10**9)
    assert missing.exit_code == 1
    assert "no batch has offset 1000000000" in missing.stderr
    assert dump("--print-data-log", f"transfers-0/{LOG}", "--offset", 0).stdout.count("\n") == 4
