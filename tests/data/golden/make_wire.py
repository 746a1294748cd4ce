"""Record what a client of a release and its broker say to each other: `python tests/data/golden/make_wire.py 0.1.0`.

Run once, with the code of that release, and never again (0.1.0: commit c56c8c3). The broker serves the directories of
`release-N.tar.gz`; `wire-N.json.gz` is a list of [connection, request frames, response frame or null] in base64, in
the order of the requests, with every API that the release knows.
"""

import asyncio
import base64
import gzip
import json
import struct
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from broker_process import BrokerProcess, port_to_keep  # noqa: E402
from warmlog import Admin, ApiError, Consumer, Producer  # noqa: E402
from warmlog_protocol.messages import FindSplitsPartition, FindSplitsRequest, FindSplitsResponse  # noqa: E402

SIZE = struct.Struct(">I")


class Recorder:
    """A proxy that passes one frame at a time: a request, then its response."""

    def __init__(self, host: str, port: int) -> None:
        self.exchanges: list[list[object]] = []
        self._target = host, port
        self._connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self._connections = self._connections, self._connections + 1
        to_read, to_write = await asyncio.open_connection(*self._target)
        try:
            while True:
                request = await frame(reader)
                exchange: list[object] = [number, base64.b64encode(request).decode(), None]
                self.exchanges.append(exchange)
                to_write.write(request)
                response = await frame(to_read)
                exchange[2] = base64.b64encode(response).decode()
                writer.write(response)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            to_write.close()
            writer.close()


async def frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(SIZE.size)
    return head + await reader.readexactly(SIZE.unpack(head)[0])


async def talk(address: str) -> None:
    """Every API, by the public client."""
    async with Admin(address) as admin:
        await admin.create_topic("fresh", partitions=2, configs={"segment.bytes": "1024"})
        await admin.list_topics()
        await admin.describe_topic("moved")
        await admin.describe_broker()
        await admin.describe_log_dirs()
        await admin.list_offsets("trimmed", "earliest")
        await admin.epoch_ends({("trimmed", 0): 1})
        await admin.delete_records({("trimmed", 0): 30})
        with suppress(ApiError):
            await admin.move_partition("trimmed", 1, "/no/data/directory")
        async with Producer(address) as producer:
            await producer.send("fresh", b"value", key=b"key", partition=0, headers=[("h", b"1")])
            for number in range(30):
                await producer.send("fresh", b"value %d" % number, partition=1)
        async with Consumer(address, topics=["fresh", "moved"]) as consumer:
            async for _ in consumer.records(until="latest"):
                pass
            await asyncio.to_thread(read_in_bulk, address)
        wanted = FindSplitsRequest([FindSplitsPartition("moved", 0, 0, 100)], target_bytes=2000, max_scan_ms=1000)
        await admin.cluster.call(wanted, FindSplitsResponse)
        await admin.delete_topic("fresh")


def read_in_bulk(address: str) -> None:
    from warmlog.ranges.arrow_reader import arrow_reader

    arrow_reader(address, ["moved"]).read_all()


async def record(address: tuple[str, int], proxy_port: int) -> list[list[object]]:
    recorder = Recorder(*address)
    async with await asyncio.start_server(recorder.serve, "127.0.0.1", proxy_port):
        await talk(f"127.0.0.1:{proxy_port}")
    return recorder.exchanges


def main(release: str) -> None:
    with tempfile.TemporaryDirectory() as workspace:
        with tarfile.open(HERE / f"release-{release}.tar.gz") as tar:
            tar.extractall(workspace, filter="data")
        a, b = Path(workspace) / "a", Path(workspace) / "b"
        proxy_port = port_to_keep()
        with BrokerProcess(a, b) as broker:
            exchanges = asyncio.run(record((broker.host, broker.port), proxy_port))
    with gzip.GzipFile(HERE / f"wire-{release}.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps(exchanges).encode())


if __name__ == "__main__":
    main(sys.argv[1])
