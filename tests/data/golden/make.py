"""Makes the golden data directories of the format version that is in force: `python tests/data/golden/make.py`.

To be run once for each version of the format, with the version that writes it, and never again: what it made is kept,
so that later versions prove that they still open it. Each is a tar of a data directory, and `expected-N.json` says
what a reader must find there: by topic and partition the records as [offset, timestamp, key, value, headers].
"""

import asyncio
import base64
import json
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from broker_process import BrokerProcess  # noqa: E402
from warmlog import Admin, Consumer, Producer  # noqa: E402
from warmlog_broker.storage.directory.properties import FORMAT_VERSION  # noqa: E402

START_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL = {"segment.bytes": "2000", "index.interval.bytes": "200", "segment.index.bytes": "1200", "retention.ms": "-1"}
TOPICS = {
    "plain": SMALL,
    "stamped": SMALL | {"message.timestamp.type": "LogAppendTime"},
    "compacted": SMALL | {"cleanup.policy": "compact"},
}


async def fill(address: str, start: int) -> None:
    """Some records in each topic, with every codec."""
    async with Admin(address) as admin:
        for name, configs in TOPICS.items() if not start else ():
            await admin.create_topic(name, partitions=2, configs=configs)
    for index, codec in enumerate(CODECS):
        async with Producer(address, compression=codec) as producer:
            for number in range(start + 40 * index, start + 40 * index + 40):
                key = None if number % 3 == 0 else b"key-%d" % (number % 7)
                value = None if number % 11 == 0 else b"value-%d" % number * (number % 5)
                headers = [("h", b"%d" % number), ("n", None)] if number % 4 == 0 else None
                for topic in TOPICS:
                    await producer.send(
                        topic,
                        value,
                        key=b"key-%d" % (number % 7) if topic == "compacted" else key,
                        timestamp_ms=START_MS + 1000 * number,
                        headers=headers,
                        partition=number % 2,
                    )


async def read(address: str) -> dict[str, list[list[object]]]:
    """Everything there is."""
    found: dict[str, list[list[object]]] = {f"{topic}-{partition}": [] for topic in TOPICS for partition in range(2)}
    async with Consumer(address, topics=list(TOPICS)) as consumer:
        async for record in consumer.records(until="latest"):
            headers = [[name, text(value)] for name, value in record.headers or ()]
            row = [record.offset, record.timestamp_ms, text(record.key), text(record.value), headers]
            found[f"{record.topic}-{record.partition}"].append(row)
    return found


def text(value: bytes | None) -> str | None:
    """Bytes as JSON can hold them."""
    return None if value is None else base64.b64encode(value).decode()


def keep(data_dir: Path, name: str) -> None:
    """The directory as a tar, without the lock."""
    with tarfile.open(HERE / f"{name}.tar.gz", "w:gz", compresslevel=9) as tar:
        for path in sorted(data_dir.rglob("*")):
            if path.name != ".lock":
                tar.add(path, str(path.relative_to(data_dir)), recursive=False)


def main() -> None:
    with tempfile.TemporaryDirectory() as workspace:
        data_dir = Path(workspace) / "data"
        with BrokerProcess(data_dir) as broker:
            asyncio.run(fill(broker.address, 0))
            broker.restart()
            broker.terminate()
            keep(data_dir, f"format-{FORMAT_VERSION}-clean")
            broker.start()
            expected = {"clean": asyncio.run(read(broker.address))}
            asyncio.run(fill(broker.address, 200))
            expected["killed"] = asyncio.run(read(broker.address))
            broker.kill()
            keep(data_dir, f"format-{FORMAT_VERSION}-killed")
    (HERE / f"expected-{FORMAT_VERSION}.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
