"""What the machine can do without warmlog: CRC, disk, encryption and loopback, in pieces as large as a batch."""

import multiprocessing
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from crc32c import crc32c

from benchmarks.measurement import VALUE_BYTES, Run
from benchmarks.rows import Bench, Benchmark

PIECE_BYTES = 64 * 1024
SYNC_EVERY_BYTES = 1024 * 1024


def benchmarks(bench: Bench) -> Iterator[Benchmark]:
    size_bytes, directory = bench.scale.limit_bytes, bench.directory
    settings = bench.settings(piece_bytes=PIECE_BYTES)
    synced = settings | {"fsync": f"every {SYNC_EVERY_BYTES} bytes"}
    yield Benchmark("limit.crc", settings, lambda: crc(size_bytes, PIECE_BYTES))
    yield Benchmark("limit.write_fdatasync", synced, lambda: write_fdatasync(size_bytes, PIECE_BYTES, directory))
    yield Benchmark("limit.loopback", settings, lambda: loopback(size_bytes, PIECE_BYTES))
    yield Benchmark("limit.tls", settings, lambda: tls(size_bytes, PIECE_BYTES, directory))


def run_of(total_bytes: int, work: Callable[[], object]) -> Run:
    """How fast `work`, which handles `total_bytes`, is."""
    start = time.perf_counter()
    work()
    return Run(total_bytes // VALUE_BYTES, time.perf_counter() - start)


def crc(total_bytes: int, piece_bytes: int) -> Run:
    """CRC-32C over pieces of memory that are not in the processor's cache."""
    pieces = [os.urandom(piece_bytes) for _ in range(512)]
    count = total_bytes // piece_bytes

    def work() -> None:
        for index in range(count):
            crc32c(pieces[index % 512])

    return run_of(count * piece_bytes, work)


def write_fdatasync(total_bytes: int, piece_bytes: int, directory: Path) -> Run:
    """Append pieces to one file, fdatasync after each 1 MiB."""
    piece = os.urandom(piece_bytes)
    count = total_bytes // piece_bytes
    path = directory / "limit"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def work() -> None:
        unsynced_bytes = 0
        for _ in range(count):
            os.write(file, piece)
            unsynced_bytes += piece_bytes
            if unsynced_bytes >= SYNC_EVERY_BYTES:
                os.fdatasync(file)
                unsynced_bytes = 0
        os.fdatasync(file)

    try:
        run = run_of(count * piece_bytes, work)
        assert os.fstat(file).st_size == count * piece_bytes
    finally:
        os.close(file)
        path.unlink()
    return run


def tls(total_bytes: int, piece_bytes: int, directory: Path) -> Run:
    """Encrypt pieces on one core, as a connection by TLS 1.3 does, and send them nowhere."""
    from certificates import HOSTS, Certificates  # 0.1.0 is developed without what makes them

    certificates = Certificates(directory / "limit-certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.broker)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=certificates.ca).wrap_bio(to_client, to_server, server_hostname=HOSTS[0])
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    pieces = [os.urandom(piece_bytes) for _ in range(512)]
    count = total_bytes // piece_bytes

    def work() -> None:
        for index in range(count):
            server.write(pieces[index % 512])
            to_client.read()

    return run_of(count * piece_bytes, work)


def loopback(total_bytes: int, piece_bytes: int) -> Run:
    """Send pieces over TCP to another process, which answers one byte when it has all."""
    count = total_bytes // piece_bytes
    piece = os.urandom(piece_bytes)
    with socket.create_server(("127.0.0.1", 0)) as server:
        receiver = multiprocessing.get_context("spawn").Process(
            target=_receive, args=(server.getsockname()[1], count * piece_bytes), daemon=True
        )
        receiver.start()
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def work() -> None:
                for _ in range(count):
                    connection.sendall(piece)
                assert connection.recv(1) == b"."

            run = run_of(count * piece_bytes, work)
        receiver.join()
        receiver.close()
    return run


def _receive(port: int, total_bytes: int) -> None:
    buffer = bytearray(1024 * 1024)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        received_bytes = 0
        while received_bytes < total_bytes:
            received_bytes += connection.recv_into(buffer)
        connection.sendall(b".")
