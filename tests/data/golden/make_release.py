"""Make the golden data directories of a release: `python tests/data/golden/make_release.py 0.1.0`.

Run once, with the code of that release, and never again (0.1.0: commit c56c8c3). `release-N.tar.gz` holds the two data
directories `a` and `b` of a broker that was killed; they hold what the directories of `make.py` do not: a partition
that was moved, a topic that was deleted and created again, leader epochs that two kills have raised, a topic with
`write.caching`, and deleted records. `release-N.json` says what a reader must
find there.
"""

import asyncio
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

SMALL = {"segment.bytes": "2000", "index.interval.bytes": "200", "segment.index.bytes": "1200", "retention.ms": "-1"}
TOPICS = {
    "moved": SMALL,
    "recreated": SMALL,
    "trimmed": SMALL,
    "cached": SMALL | {"write.caching": "true"},
    "flushed-late": SMALL | {"flush.ms": "60000"},
}
PARTITIONS = 2
RECORDS = 60
TRIMMED_BEFORE = 25


async def fill(address: str, round_number: int) -> None:
    async with Producer(address, compression="zstd" if round_number % 2 else "none") as producer:
        for number in range(RECORDS):
            for topic in TOPICS:
                value = f"{topic} {round_number} {number}".encode()
                await producer.send(
                    topic, value, key=b"%d" % number, timestamp_ms=1_700_000_000_000 + number, partition=0
                )
                await producer.send(topic, value, timestamp_ms=1_700_000_000_000 + number, partition=1)


async def begin(address: str) -> None:
    async with Admin(address) as admin:
        for name, configs in TOPICS.items():
            await admin.create_topic(name, partitions=PARTITIONS, configs=configs)
        await admin.create_topic("deleted", partitions=PARTITIONS, configs=SMALL)
    await fill(address, 0)


async def change(address: str, directories: list[Path]) -> None:
    async with Admin(address) as admin:
        await admin.delete_topic("recreated")
        await admin.delete_topic("deleted")
        await admin.create_topic("recreated", partitions=PARTITIONS, configs=SMALL)
        await admin.delete_records({("trimmed", 0): TRIMMED_BEFORE})
        for directory in directories:
            await admin.move_partition("moved", 0, directory)
            await until_moved(admin, directory)
    await fill(address, 1)


async def until_moved(admin: Admin, directory: Path) -> None:
    while True:
        for entry in await admin.describe_log_dirs(["moved"]):
            if entry.path == str(directory) and [r for r in entry.replicas if r.partition == 0 and not r.is_future]:
                return
        await asyncio.sleep(0.05)


async def read(address: str) -> dict[str, object]:
    """By topic and partition: the leader epoch and the records as [offset, timestamp in ms, key, value]."""
    found: dict[str, object] = {}
    async with Admin(address) as admin, Consumer(address, topics=list(TOPICS)) as consumer:
        rows: dict[tuple[str, int], list[object]] = {}
        async for record in consumer.records(until="latest"):
            key = None if record.key is None else record.key.decode()
            value = None if record.value is None else record.value.decode()
            rows.setdefault((record.topic, record.partition), []).append(
                [record.offset, record.timestamp_ms, key, value]
            )
        for description in await admin.list_topics():
            for partition in description.partitions:
                name = f"{description.name}-{partition.partition}"
                found[name] = {
                    "leader_epoch": partition.leader_epoch,
                    "records": rows.get((description.name, partition.partition), []),
                }
    return found


def main(release: str) -> None:
    with tempfile.TemporaryDirectory() as workspace:
        a, b = Path(workspace) / "a", Path(workspace) / "b"
        with BrokerProcess(a, b) as broker:
            asyncio.run(begin(broker.address))
            broker.kill()
            broker.start()
            asyncio.run(change(broker.address, [a, b]))
            broker.kill()
            broker.start()
            asyncio.run(fill(broker.address, 2))
            expected = asyncio.run(read(broker.address))
            broker.kill()
            with tarfile.open(HERE / f"release-{release}.tar.gz", "w:gz", compresslevel=9) as tar:
                for path in sorted([*a.rglob("*"), *b.rglob("*")]):
                    if path.name != ".lock":
                        tar.add(path, str(path.relative_to(workspace)), recursive=False)
    (HERE / f"release-{release}.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
