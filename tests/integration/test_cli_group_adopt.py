"""`warmlog group adopt`: offsets that groups have committed in a Kafka."""

import json
from pathlib import Path
from struct import pack

from integration.command_line import CommandLine, succeeded
from warmlog_protocol.batch import (
    ControlType,
    EndTxnMarker,
    encode_batch,
    encode_end_txn_marker,
    read_batch,
    to_rows,
)


def text(value: str) -> bytes:
    return pack(">h", len(value)) + value.encode()


def key(group: str, topic: str, partition: int) -> bytes:
    return pack(">h", 1) + text(group) + text(topic) + pack(">i", partition)


def value(offset: int, version: int) -> bytes:
    """As Kafka has written it since 0.9 (1), 2.0 (2) and 2.1 (3)."""
    epoch = pack(">i", 7) if version == 3 else b""
    rest = pack(">q", 1_700_000_000_000) * (2 if version == 1 else 1)
    return pack(">hq", version, offset) + epoch + text("a note") + rest


def kafka_directory(path: Path, topic: str) -> Path:
    partition = path / "kafka" / "__consumer_offsets-17"
    partition.mkdir(parents=True)
    transactional = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}

    def commits(*offsets: tuple[bytes, bytes | None], **fields: object) -> bytes:
        keys, values = zip(*offsets, strict=True)
        return to_rows(read_batch(encode_batch(values, keys=keys, timestamps_ms=0, **fields)))  # type: ignore[arg-type]

    def end(kind: ControlType) -> bytes:
        return encode_end_txn_marker(EndTxnMarker(kind, 0), producer_id=5, producer_epoch=0, timestamp_ms=0)

    (partition / "00000000000000000000.log").write_bytes(
        commits((key("billing", topic, 0), value(1, 1)), (key("billing", topic, 1), value(2, 2)))
        + commits((key("billing", topic, 0), value(3, 3)), (key("gone", topic, 0), value(1, 3)))
        + commits((pack(">h", 2) + text("billing"), b"members"), (key("gone", topic, 0), None))
        + commits((key("etl", topic, 0), value(2, 3)), **transactional)
        + commits((key("etl", topic, 1), value(99, 3)), (key("etl", "elsewhere", 0), value(4, 3)))
    )
    (partition / "00000000000000000009.log").write_bytes(
        end(ControlType.COMMIT) + commits((key("etl", topic, 0), value(1, 3)), **transactional) + end(ControlType.ABORT)
    )
    for name in (f"17.{'0' * 32}-delete", f"18.{'0' * 32}-stray"):
        old = partition.parent / f"__consumer_offsets-{name}"
        old.mkdir()
        (old / "00000000000000000000.log").write_bytes(commits((key("billing", topic, 0), value(1, 3))))
    return path / "kafka"


def test_groups_continue_where_they_were_in_kafka(warmlog: CommandLine, topic: str, tmp_path: Path) -> None:
    succeeded(warmlog("topic", "create", topic, "--partitions", "2"))
    for partition in (0, 1):
        succeeded(warmlog("produce", topic, "--partition", partition, given=b"a\nb\nc\nd\n"))
    kafka = kafka_directory(tmp_path, topic)
    planned = warmlog("group", "adopt", kafka)
    assert succeeded(planned).decode().splitlines()[1:] == [
        f"billing\t{topic}\t0\t3\t\t3",
        f"billing\t{topic}\t1\t2\t\t2",
        "etl\telsewhere\t0\t4\t\tno such partition",
        f"etl\t{topic}\t0\t2\t\t2",
        f"etl\t{topic}\t1\t99\t\t4",
    ]
    assert b"nothing was changed" in planned.stderr
    assert b"billing" not in succeeded(warmlog("group", "list"))
    done = json.loads(succeeded(warmlog("group", "adopt", kafka, "--group", "billing", "--execute", "--json")))
    assert [each["offset"] for each in done["offsets"]] == [3, 2]
    assert b"etl" not in succeeded(warmlog("group", "list"))
    new = succeeded(warmlog("consume", topic, "--group", "billing", "--to", "latest"))
    assert sorted(new.split()) == [b"c", b"d", b"d"]
    again = warmlog("group", "adopt", kafka, "--group", "billing", "--execute")
    assert succeeded(again).decode().splitlines()[1] == f"billing\t{topic}\t0\t3\t4\tleft out"
    assert b"--force" in again.stderr
    assert succeeded(warmlog("consume", topic, "--group", "billing", "--to", "latest")) == b""
    succeeded(warmlog("group", "adopt", kafka, "--group", "billing", "--execute", "--force"))
    assert len(succeeded(warmlog("consume", topic, "--group", "billing", "--to", "latest")).split()) == 3
