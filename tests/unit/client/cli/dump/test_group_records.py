"""`warmlog log dump` of `__groups`: records as JSON, and those that cannot be decoded as they are."""

import json
import shutil
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from unit.client.cli.dump.test_log_dump import LOG, batch_at, dump
from warmlog_broker.coordinator.framework.decision import Record
from warmlog_broker.coordinator.group.decisions.records import (
    GroupKey,
    GroupValue,
    KnownTopic,
    OffsetKey,
    OffsetValue,
    Partition,
    ShareKey,
    TargetKey,
    TargetValue,
    pack_share,
    put,
    remove,
)

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
        put(ShareKey("etl", "m-1"), pack_share([Partition(ORDERS.bytes, 1), Partition(ORDERS.bytes, 0)])),
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


def test_other_topics_are_not_decoded_and_a_file_given_without_its_directory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = put(GroupKey("etl"), GroupValue(3, -1))
    (line,) = lines(tmp_path / "__groups-0", record)
    assert documents(line) == ({"kind": "group", "group": "etl"}, {"epoch": 3, "empty_since_ms": -1, "owner": ""})
    done = dump("--print-data-log", LOG, cwd=tmp_path / "__groups-0")
    assert line in done.stdout.splitlines()
    shutil.copytree(tmp_path / "__groups-0", tmp_path / "groups-0")
    assert '"kind"' not in dump("--print-data-log", tmp_path / "groups-0" / LOG).stdout
