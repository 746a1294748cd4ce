"""Make the golden data directory of a broker of before there were clusters: `python tests/data/golden/make_single.py`.

Run once, with the code of commit 987e0da, and never again. `single-987e0da.tar.gz` holds what a broker left that was
killed: a topic `plain` of three partitions with the numbers 0 to 299, of which the group `readers` has read the first
half; a compacted topic `table` with the last values of ten keys; 300 in a transaction of the id `t` that was committed,
and -1 in one that was not; the user `alice`, a rule and a quota of hers.
"""

import asyncio
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from broker_process import BrokerProcess  # noqa: E402
from warmlog import Acl, Admin, Consumer, Producer  # noqa: E402

PARTITIONS = 3
COUNT = 300


async def begin(address: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topic("plain", partitions=PARTITIONS, configs={"segment.bytes": "4000"})
        await admin.create_topic("table", partitions=1, configs={"cleanup.policy": "compact", "segment.bytes": "4000"})
        await admin.create_user("alice", "secret of alice")
        await admin.create_acls([Acl("User:alice", "read", "topic", "plain")])
        await admin.alter_quotas({"producer_byte_rate": 1_000_000}, user="alice")


async def fill(address: str, first: int, end: int) -> None:
    async with Producer(address) as producer:
        for number in range(first, end):
            await producer.send("plain", b"%d" % number, partition=number % PARTITIONS)
            await producer.send("table", b"%d" % number, key=b"%d" % (number % 10))


async def read(address: str) -> None:
    async with Consumer(address, topics=["plain"], group="readers", start="earliest") as consumer:
        async for _ in consumer.records(until="latest"):
            pass
        await consumer.commit()


async def transactions(broker: BrokerProcess) -> None:
    async with Producer(broker.address, transactional_id="t") as producer:
        async with producer.transaction():
            await producer.send("plain", b"%d" % COUNT, partition=0)
        async with producer.transaction():
            await producer.send("plain", b"-1", partition=1)
            await asyncio.to_thread(broker.kill)
            await asyncio.sleep(60)


def main() -> None:
    with tempfile.TemporaryDirectory() as workspace:
        data_dir = Path(workspace) / "data"
        with BrokerProcess(data_dir) as broker:
            asyncio.run(begin(broker.address))
            asyncio.run(fill(broker.address, 0, COUNT // 2))
            asyncio.run(read(broker.address))
            broker.kill()
            broker.start()
            asyncio.run(fill(broker.address, COUNT // 2, COUNT))
            with suppress(TimeoutError):
                asyncio.run(asyncio.wait_for(transactions(broker), 3))
        with tarfile.open(HERE / "single-987e0da.tar.gz", "w:gz", compresslevel=9) as tar:
            for path in sorted(data_dir.rglob("*")):
                if path.name != ".lock":
                    tar.add(path, str(path.relative_to(data_dir)), recursive=False)


if __name__ == "__main__":
    main()
