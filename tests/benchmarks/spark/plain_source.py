"""A source and a writer that do nothing beside moving bytes: what is left of each is Spark, and the way to a server.

The source yields the Arrow batches of files, mapped or by TCP from a plain_server, one task a file; the writer sends
each batch's buffers there. Pickled by value: workers do not see the benchmarks.
"""

import json
import secrets
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)


class PlainReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, paths: list[str], port: int | None) -> None:
        self._paths = paths
        self._port = port

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(path) for path in self._paths]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from warmlog.spark.read.range_tasks import hide_modules_from_collector

        hide_modules_from_collector()
        if self._port is None:
            with pa.memory_map(partition.value) as memory, pa.ipc.open_stream(memory) as stream:
                yield from stream
            return
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            connection.sendall(f"GET {partition.value}\n".encode())
            with pa.PythonFile(_Received(connection), "r") as file, pa.ipc.open_stream(file) as stream:
                yield from stream


class _Received:
    """What comes by a connection as a file for Arrow, received into Arrow's own memory."""

    closed = False

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def read(self, size_bytes: int) -> Any:
        buffer = pa.allocate_buffer(size_bytes)
        received = self._connection.recv_into(memoryview(buffer).cast("B"), size_bytes, socket.MSG_WAITALL)
        return buffer.slice(0, received)

    def close(self) -> None:
        self.closed = True


class Stored(WriterCommitMessage):  # type: ignore[misc]
    """Nothing to tell."""


class PlainWriter(DataSourceArrowWriter):  # type: ignore[misc]
    def __init__(self, directory: str, port: int) -> None:
        self._directory = directory
        self._port = port

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from warmlog.spark.read.range_tasks import hide_modules_from_collector

        hide_modules_from_collector()
        sent_bytes = 0
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            connection.sendall(f"PUT {Path(self._directory) / secrets.token_hex(8)}\n".encode())
            for batch in iterator:
                for buffer in (buffer for column in batch.columns for buffer in column.buffers() if buffer):
                    connection.sendall(buffer)
                    sent_bytes += buffer.size
            connection.shutdown(socket.SHUT_WR)
            stored_bytes = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
        assert stored_bytes == sent_bytes, f"{stored_bytes} of {sent_bytes} bytes are on disk"
        return Stored()


class PlainSource(DataSource):  # type: ignore[misc]
    """Options: `paths` (JSON) to read, `directory` to write into, and the `port` of the server; without that the source
    maps the files."""

    @classmethod
    def name(cls) -> str:
        return "warmlog_plain"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: Any) -> PlainReader:
        port = self.options.get("port")
        return PlainReader(json.loads(self.options["paths"]), None if port is None else int(port))

    def writer(self, schema: Any, overwrite: bool) -> PlainWriter:
        return PlainWriter(self.options["directory"], int(self.options["port"]))


def register(session: Any) -> None:
    """Make `warmlog_plain` known to `session`."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    session.dataSource.register(PlainSource)
