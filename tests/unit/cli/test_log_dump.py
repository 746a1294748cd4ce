"""`warmlog log dump` prints what Kafka's own DumpLogSegments printed for the same files."""

import contextlib
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from warmlog.cli.app import build_app
from warmlog_protocol.batch import encode_batch, placement_prefix, read_header, stamp_append_time
from warmlog_protocol.batch.header import CRC_START

SAMPLE = Path(__file__).parents[2] / "data" / "kafka-sample"
PRINTED = (".log", ".index", ".timeindex", ".snapshot")
LOG = "00000000000000000000.log"


def dump(*arguments: object, cwd: Path = SAMPLE) -> Result:
    """The command, with its output."""
    with contextlib.chdir(cwd):
        return CliRunner().invoke(build_app(is_terminal=False), ["log", "dump", *map(str, arguments)])


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
    assert "not beside it" in done.stderr
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
    assert f"the batch claims {len(second)} bytes, {len(second) - 3} are left" in done.stderr


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


def test_a_damaged_snapshot_fails_with_its_reason(tmp_path: Path) -> None:
    content = bytearray((SAMPLE / "transfers-0" / "00000000000000000375.snapshot").read_bytes())
    content[-1] ^= 1
    (tmp_path / "00000000000000000375.snapshot").write_bytes(content)
    done = dump("00000000000000000375.snapshot", cwd=tmp_path)
    assert done.exit_code == 1
    assert done.stderr.startswith("warmlog: error: ")
    assert "CRC" in done.stderr


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
    assert "named after its base offset" in done.stderr
