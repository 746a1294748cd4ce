"""The two partitions that Kafka wrote, and what Kafka's own tool says is in them."""

import re
import shutil
from pathlib import Path
from typing import NamedTuple

SAMPLE = Path(__file__).parent / "data" / "kafka-sample"
PARTITIONS = ("flights-0", "transfers-0")

_BATCH = re.compile(r"baseOffset: (\d+) .* producerId: (-?\d+) .* isControl: (true|false) ")
_RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) CreateTime: (?P<time>\d+) keySize: (?P<key_size>-?\d+) "
    r"valueSize: (?P<value_size>-?\d+) sequence: -?\d+ headerKeys: \[(?P<headers>[^]]*)\](?P<rest>.*)"
)
_ABORTED = re.compile(r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) ")


class Dumped(NamedTuple):
    """A record as Kafka's tool prints it: of headers, only the names."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    header_names: tuple[str, ...]


def copy_sample(target: Path, *, is_clean: bool = True) -> Path:
    """A data directory as Kafka leaves it, with the marker of a clean stop unless that is not wanted."""
    shutil.copytree(SAMPLE, target, ignore=shutil.ignore_patterns("*.dump", "*.md"))
    (target / "meta.properties").write_text("#\nnode.id=1\nversion=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n")
    (target / "recovery-point-offset-checkpoint").write_text("0\n2\nflights 0 14000\ntransfers 0 375\n")
    (target / "replication-offset-checkpoint").write_text("0\n2\nflights 0 14000\ntransfers 0 375\n")
    (target / "log-start-offset-checkpoint").write_text("0\n0\n")
    if is_clean:
        (target / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    return target


def dumped_records(path: Path, *, is_committed: bool = False) -> list[Dumped]:
    """The records in a dump with --print-data-log, markers aside; if `is_committed` without those that were aborted."""
    aborted = _aborted_of(path.parent) if is_committed else []
    records, producer_id, is_control = [], -1, False
    for line in path.read_text().splitlines():
        batch = _BATCH.match(line)
        if batch:
            producer_id, is_control = int(batch[2]), batch[3] == "true"
        record = _RECORD.match(line)
        if record is None or is_control:
            continue
        offset = int(record["offset"])
        if not any(producer == producer_id and first <= offset <= last for producer, first, last in aborted):
            records.append(_record_of(record))
    return records


def _record_of(match: "re.Match[str]") -> Dumped:
    rest, key, value = match["rest"], None, None
    if int(match["value_size"]) >= 0:
        rest, _, text = rest.partition(" payload: ")
        value = text.encode()
        assert len(value) == int(match["value_size"])
    if int(match["key_size"]) >= 0:
        key = rest.removeprefix(" key: ").encode()
        assert len(key) == int(match["key_size"])
    names = tuple(name for name in match["headers"].split(",") if name)
    return Dumped(int(match["offset"]), int(match["time"]), key, value, names)


def _aborted_of(directory: Path) -> list[tuple[int, int, int]]:
    """Producer id, first and last offset of each aborted transaction, as Kafka's tool prints them."""
    lines = "".join(path.read_text() for path in directory.glob("*.txnindex.dump"))
    return [(int(a), int(b), int(c)) for a, b, c in _ABORTED.findall(lines)]
