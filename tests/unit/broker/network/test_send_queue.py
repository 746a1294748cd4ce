"""Sending frames and file ranges over a real socket: in order, to slow readers, by each of the ways."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from unit.broker.network.conftest import FILE_BYTES, Run
from waiting import until
from warmlog_broker.network.memory_pool import ResponseMemory
from warmlog_broker.network.request import Life
from warmlog_broker.network.send_queue import PAUSE_ABOVE_BYTES, PIECE_BYTES, SendQueue
from warmlog_broker.network.session import Outbox
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.storage.io.open_files import OpenFile
from warmlog_broker.storage.segment.file_records import FileSlice


class Sender(asyncio.Protocol):
    """The broker's end: a queue on a transport."""

    def __init__(self, cold_readers: ThreadPoolExecutor, uses_sendfile: bool) -> None:
        self.sent = 0
        self.lost = asyncio.Event()
        self.pauses = 0
        self.memory = ResponseMemory(1 << 30)
        self.life = Life()
        self._options = (cold_readers, uses_sendfile)
        self.queue: SendQueue

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cold_readers, uses_sendfile = self._options
        self.queue = SendQueue(
            transport,  # type: ignore[arg-type]
            cold_readers=cold_readers,
            uses_sendfile=uses_sendfile,
            memory=self.memory,
            life=self.life,
            lines=RepeatedLines(logging.getLogger("warmlog_broker.network.send_queue")),
            on_sent=self._note_sent,
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def pause_writing(self) -> None:
        self.pauses += 1
        self.queue.pause()

    def resume_writing(self) -> None:
        self.queue.resume()

    def _note_sent(self) -> None:
        self.sent += 1


@asynccontextmanager
async def connected(
    cold_readers: ThreadPoolExecutor, *, uses_sendfile: bool = True
) -> AsyncIterator[tuple[Sender, socket.socket]]:
    """A sender, and the socket of its reader."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _, sender = await loop.create_connection(lambda: Sender(cold_readers, uses_sendfile), sock=ours)
    try:
        yield sender, theirs
    finally:
        theirs.close()
        sender.queue._transport.abort()
        await sender.lost.wait()


async def read(reader: socket.socket, size_bytes: int, *, piece_bytes: int = 1 << 20) -> bytes:
    loop = asyncio.get_running_loop()
    received = bytearray()
    while len(received) < size_bytes:
        piece = await loop.sock_recv(reader, min(piece_bytes, size_bytes - len(received)))
        assert piece, f"the connection ended after {len(received)} bytes"
        received += piece
    return bytes(received)


@pytest.mark.parametrize("uses_sendfile", [True, False], ids=["sendfile", "pread"])
def test_frames_and_ranges_arrive_in_order(
    file: OpenFile, data: bytes, cold_readers: ThreadPoolExecutor, uses_sendfile: bool, run: Run
) -> None:
    async def scenario() -> None:
        async with connected(cold_readers, uses_sendfile=uses_sendfile) as (sender, reader):
            sender.queue.push([b"first", FileSlice(file, 10, 1000), FileSlice(file, 0, FILE_BYTES)])
            sender.queue.push([b"second"])
            sender.queue.push([b"third", FileSlice(file, FILE_BYTES - 1, 1)])
            sender.queue.pump()
            expected = b"first" + data[10:1010] + data + b"second" + b"third" + data[-1:]
            assert await read(reader, len(expected)) == expected
            assert sender.queue.queued_bytes == 0
            assert sender.queue.is_empty

    run(scenario())


@pytest.mark.parametrize("uses_sendfile", [True, False], ids=["sendfile", "pread"])
def test_a_reader_that_does_not_read_holds_little_memory(
    file: OpenFile, data: bytes, cold_readers: ThreadPoolExecutor, uses_sendfile: bool, run: Run
) -> None:
    async def scenario() -> None:
        async with connected(cold_readers, uses_sendfile=uses_sendfile) as (sender, reader):
            for _ in range(10):
                sender.queue.push([b"frame", FileSlice(file, 0, FILE_BYTES)])
            sender.queue.pump()
            await until(lambda: sender.pauses > 0)
            assert sender.queue._transport.get_write_buffer_size() <= PAUSE_ABOVE_BYTES + PIECE_BYTES
            assert sender.queue.queued_bytes > 9 * FILE_BYTES
            assert 0 < sender.memory.held_bytes <= PAUSE_ABOVE_BYTES + PIECE_BYTES + 10 * 5
            for _ in range(10):
                assert await read(reader, 5 + FILE_BYTES, piece_bytes=300_000) == b"frame" + data
            assert sender.sent >= 1
            assert sender.queue.is_empty
            assert sender.memory.held_bytes == 0
            assert sender.queue.taken_bytes == 10 * (5 + FILE_BYTES)

    run(scenario())


@pytest.mark.parametrize("error", [OSError("the disk fails"), MemoryError()])
def test_a_range_that_cannot_be_read_ends_the_connection(
    file: OpenFile, cold_readers: ThreadPoolExecutor, run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: FileSlice) -> bytes:
        raise error

    async def scenario() -> None:
        async with connected(cold_readers) as (sender, _):
            monkeypatch.setattr(FileSlice, "pread", fail)
            sender.queue.push([b"frame", FileSlice(file, 0, 100)])
            sender.queue.pump()
            await asyncio.wait_for(sender.lost.wait(), 5)

    run(scenario())


def test_small_ranges_leave_together_with_their_frames(
    file: OpenFile, data: bytes, cold_readers: ThreadPoolExecutor, run: Run
) -> None:
    async def scenario() -> None:
        async with connected(cold_readers) as (sender, reader):
            for number in range(10):
                sender.queue.push([b"frame", FileSlice(file, 100 * number, 100), FileSlice(file, 0, 3)])
            sender.queue.pump()
            expected = b"".join(b"frame" + data[100 * n : 100 * n + 100] + data[:3] for n in range(10))
            assert await asyncio.get_running_loop().sock_recv(reader, 10_000) == expected
            assert sender.queue.queued_bytes == 0

    run(scenario())


def test_frames_queued_together_leave_in_one_write(cold_readers: ThreadPoolExecutor, run: Run) -> None:
    async def scenario() -> None:
        async with connected(cold_readers) as (sender, reader):
            for number in range(100):
                sender.queue.push([b"%03d" % number])
            sender.queue.pump()
            assert await asyncio.get_running_loop().sock_recv(reader, 1000) == b"".join(b"%03d" % n for n in range(100))

    run(scenario())


def test_what_left_the_page_cache_while_it_waited_is_read_by_a_thread(
    file: OpenFile, data: bytes, cold_readers: ThreadPoolExecutor, run: Run
) -> None:
    async def scenario() -> None:
        os.fdatasync(file.fd)
        async with connected(cold_readers) as (sender, reader):
            sender.queue.push([b"frame", FileSlice(file, 0, FILE_BYTES)])
            sender.queue.pump()
            assert not sender.queue.is_empty
            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert await read(reader, 5 + FILE_BYTES) == b"frame" + data

    run(scenario())


@pytest.mark.parametrize("uses_sendfile", [True, False], ids=["sendfile", "pread"])
def test_a_file_that_became_shorter_ends_the_connection(
    file: OpenFile, cold_readers: ThreadPoolExecutor, uses_sendfile: bool, run: Run
) -> None:
    async def scenario() -> None:
        async with connected(cold_readers, uses_sendfile=uses_sendfile) as (sender, _):
            os.ftruncate(file.fd, 100)
            sender.queue.push([b"frame", FileSlice(file, 0, 200)])
            sender.queue.pump()
            await asyncio.wait_for(sender.lost.wait(), 25)

    run(scenario())


def test_a_reader_that_goes_away_ends_the_connection(
    file: OpenFile, cold_readers: ThreadPoolExecutor, run: Run
) -> None:
    async def scenario() -> None:
        async with connected(cold_readers) as (sender, reader):
            sender.queue.push([b"frame", FileSlice(file, 0, FILE_BYTES)])
            sender.queue.pump()
            reader.close()
            await asyncio.wait_for(sender.lost.wait(), 25)
            sender.queue.count_waiting([[b"a later response"]])
            sender.queue.clear()
            assert sender.queue.waiting_bytes == sender.life.held_bytes == 0
            assert sender.queue.queued_bytes == 0

    run(scenario())


def test_frames_that_nobody_reads_are_counted_until_they_are_read_or_given_up(
    cold_readers: ThreadPoolExecutor, run: Run
) -> None:
    async def scenario() -> None:
        async with connected(cold_readers) as (sender, reader):
            for _ in range(100):
                sender.queue.push([bytes(100_000)])
            assert sender.memory.held_bytes == sender.life.held_bytes == 10_000_000
            sender.queue.pump()
            await asyncio.sleep(0.05)
            assert 5_000_000 < sender.memory.held_bytes <= 10_000_000
            await read(reader, 9_000_000)
            await until(lambda: sender.memory.held_bytes <= 2_000_000)
            sender.memory.hold(sender.life, 7)
            sender.queue.close()
            assert sender.memory.held_bytes == sender.life.held_bytes == 7, "what is being converted is given up later"

    run(scenario())


# The outbox


class FakeSender:
    def __init__(self, outbox: Outbox, again: int = 0) -> None:
        self.flushes = 0
        self._outbox = outbox
        self._again = again

    def flush(self) -> None:
        self.flushes += 1
        if self._again:
            self._again -= 1
            self._outbox.add(self)


async def test_each_sender_is_flushed_once_in_the_next_turn_however_often_it_was_added() -> None:
    outbox = Outbox()
    senders = [FakeSender(outbox), FakeSender(outbox)]
    for sender in senders * 5:
        outbox.add(sender)
    assert [sender.flushes for sender in senders] == [0, 0]
    for _ in range(3):
        await asyncio.sleep(0)
        assert [sender.flushes for sender in senders] == [1, 1]


async def test_what_a_flush_adds_is_flushed_in_the_turn_after_it() -> None:
    outbox = Outbox()
    sender = FakeSender(outbox, again=2)
    outbox.add(sender)
    for flushes in (1, 2, 3, 3):
        await asyncio.sleep(0)
        assert sender.flushes == flushes
