"""Data directories of each format version that there has been are opened, and hold what they held.

`data/golden/make.py` has made them.
"""

import asyncio
import base64
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from warmlog import Consumer, Producer
from warmlog_broker.storage.directory.partition_files import Gaps, read_gaps

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
VERSIONS = sorted(int(path.stem.rpartition("-")[2]) for path in GOLDEN.glob("expected-*.json"))
TOPICS = ["plain", "stamped", "compacted"]


def text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


async def read(address: str) -> dict[str, list[list[object]]]:
    found: dict[str, list[list[object]]] = {}
    async with Consumer(address, topics=TOPICS) as consumer:
        async for record in consumer.records(until="latest"):
            headers = [[name, text(value)] for name, value in record.headers or ()]
            row = [record.offset, record.timestamp_ms, text(record.key), text(record.value), headers]
            found.setdefault(f"{record.topic}-{record.partition}", []).append(row)
    return found


async def append(address: str) -> list[int]:
    async with Producer(address) as producer:
        return [(await producer.send(topic, b"more", key=b"more", partition=0)).offset for topic in TOPICS]


@pytest.fixture(params=[(version, end) for version in VERSIONS for end in ("clean", "killed")], ids=str)
def golden(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[BrokerProcess, dict[str, list[list[object]]]]]:
    version, end = request.param
    with tarfile.open(GOLDEN / f"format-{version}-{end}.tar.gz") as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # not yet in the first releases of Python 3.11
        tar.extractall(tmp_path / "data")
    expected = json.loads((GOLDEN / f"expected-{version}.json").read_text())[end]
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker, expected


def test_every_format_version_is_covered() -> None:
    assert list(range(1, VERSIONS[-1] + 1)) == VERSIONS


def test_an_earlier_directory_holds_what_it_held(golden: tuple[BrokerProcess, dict[str, list[list[object]]]]) -> None:
    broker, expected = golden
    found = asyncio.run(read(broker.address))
    for name, rows in expected.items():
        if name.startswith("compacted"):  # which goes on at any time
            assert last_values(found[name]) == last_values(rows)
            assert all(row in rows for row in found[name])
        else:
            assert found[name] == rows
    next_offsets = {name: int(str(rows[-1][0])) + 1 for name, rows in found.items()}
    marks = {name: read_gaps(broker.data_dir / name) for name in next_offsets if not name.startswith("compacted")}
    assert marks == {name: Gaps(rows_up_to=next_offsets[name]) for name in marks}
    assert asyncio.run(append(broker.address)) == [next_offsets[f"{topic}-0"] for topic in TOPICS]
    broker.restart()
    after = asyncio.run(read(broker.address))
    assert marks == {name: read_gaps(broker.data_dir / name) for name in marks}
    assert [len(after[f"{topic}-0"]) - len(found[f"{topic}-0"]) for topic in ("plain", "stamped")] == [1, 1]


def last_values(rows: list[list[object]]) -> dict[object, object]:
    """The last value of each key; a key that was deleted is not there."""
    last = {row[2]: row[3] for row in rows}
    return {key: value for key, value in last.items() if value is not None}
