"""A broker that runs out of descriptors, memory or file size: by real limits, put on it while it runs."""

import os
import platform
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from broker_process import BrokerFailed, BrokerProcess
from processor_time import processor_time
from warmlog_protocol.errors import ApiError, DiskFull, OutOfResources
from wire_client import ConnectionEnded, WireClient, batch_of

RECORD = batch_of([b"x" * 300], timestamp_ms=time.time_ns() // 1_000_000)
PATIENCE_S = 40
ARENA_BYTES = 64 * 1024 * 1024


@contextmanager
def limited(pid: int, kind: int, limit: int) -> Iterator[None]:
    """Within, the process may have no more than `limit` of something."""
    soft, hard = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (limit, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, (soft, hard))


@contextmanager
def no_more_descriptors(broker: BrokerProcess) -> Iterator[None]:
    """Within, every descriptor that the broker may have is in use."""
    numbers = {int(path.name) for path in Path(f"/proc/{broker.pid}/fd").iterdir()}
    with limited(broker.pid, resource.RLIMIT_NOFILE, max(numbers) + 1):
        yield


def produced(client: WireClient, partition: int = 0, batch: bytes = RECORD) -> int:
    return client.produce("t", batch, partition=partition).base_offset


def test_without_descriptors_requests_fail_alone_and_go_on_when_there_are_some(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", segment_bytes=1024) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=2)
            for _ in range(20):
                produced(client)
        broker.restart()  # now no file is open
        with WireClient(broker.address) as client:
            assert produced(client, 1) == 0
            before = len(broker.output)
            with no_more_descriptors(broker):
                for _ in range(200):
                    with pytest.raises(OutOfResources):
                        client.fetch("t", 0)
                    with pytest.raises(OutOfResources):
                        produced(client)
                with pytest.raises(OutOfResources):
                    client.create_topic("new")
                assert produced(client, 1) == 1
                assert client.fetch("t", 0, partition=1)[0].high_watermark == 2
            assert len(broker.output[before:].splitlines()) < 20
            assert client.fetch("t", 0)[0].high_watermark == 20
            for offset in range(20, 26):
                assert produced(client) == offset
            client.create_topic("new")
        assert broker.terminate() == 0


def test_connections_for_which_there_is_no_descriptor_cost_neither_time_nor_lines(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        produced(client)
        before, used_s = len(broker.output), processor_time(broker.pid).own_s
        with no_more_descriptors(broker):
            peers = [socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S) for _ in range(100)]
            time.sleep(1.0)
            assert processor_time(broker.pid).own_s - used_s < 0.7
            assert len(broker.output[before:].splitlines()) < 10
            assert produced(client) == 1
        for peer in peers:
            peer.close()
        with WireClient(broker.address) as another:
            assert produced(another) == 2


def test_writes_that_the_kernel_cuts_short_leave_no_torn_batch(tmp_path: Path) -> None:
    """Above RLIMIT_FSIZE the kernel writes what fits, and refuses the rest."""
    with BrokerProcess(tmp_path / "data", segment_index_bytes=1024) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        large = batch_of([os.urandom(1000) for _ in range(20)])
        log = tmp_path / "data" / "t-0" / f"{0:020d}.log"
        offset = 0
        for missing_bytes in (1, 20, 21, 22, 61, 10_000, len(large) - 1):
            assert produced(client, batch=large) == offset
            offset += 20
            size_bytes = log.stat().st_size
            with limited(broker.pid, resource.RLIMIT_FSIZE, size_bytes + len(large) - missing_bytes):
                for _ in range(2):
                    with pytest.raises(DiskFull):
                        produced(client, batch=large)
                assert log.stat().st_size == size_bytes
                assert client.fetch("t", 0)[0].high_watermark == offset
        broker.kill()
        broker.start()
        with WireClient(broker.address) as again:
            assert again.fetch("t", 0)[0].high_watermark == offset
            assert "kept in" not in broker.output
            assert produced(again) == offset


def test_without_memory_a_request_fails_and_the_broker_lives(tmp_path: Path) -> None:
    mib = 1024 * 1024
    with BrokerProcess(tmp_path / "data", max_message_bytes=64 * mib, segment_bytes=512 * mib) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            large = batch_of([os.urandom(32 * mib)])
            used_bytes = int(Path(f"/proc/{broker.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            refusals: list[str] = []
            for room_bytes in (8 * mib, 40 * mib, 64 * mib):
                with limited(broker.pid, resource.RLIMIT_AS, used_bytes + room_bytes):
                    try:
                        with WireClient(broker.address) as greedy:
                            produced(greedy, batch=large)
                    except (ApiError, ConnectionEnded, OSError) as error:
                        refusals.append(type(error).__name__)
                    produced(client)
            assert refusals, "there was memory enough"
            assert set(refusals) <= {"OutOfResources", "ConnectionEnded", "ConnectionResetError", "BrokenPipeError"}
            before = client.fetch("t", 0)[0].high_watermark
            assert produced(client, batch=large) == before
        assert broker.terminate() == 0
        broker.start()
        with WireClient(broker.address) as client:
            assert client.fetch("t", 0)[0].high_watermark == before + 1


def test_a_broker_whose_threads_cannot_be_started_says_so_and_starts_when_they_can(tmp_path: Path) -> None:
    stack_bytes, memory_bytes = 4 << 30, 6 << 30  # the second thread's stack does not fit
    own = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_STACK, resource.RLIMIT_AS)}
    broker = BrokerProcess(tmp_path / "data")
    broker.may_fork = False  # it inherits the limits of this process
    try:
        resource.setrlimit(resource.RLIMIT_STACK, (stack_bytes, own[resource.RLIMIT_STACK][1]))
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, own[resource.RLIMIT_AS][1]))
        with pytest.raises(BrokerFailed) as failed:
            broker.start()
    finally:
        for kind, limits in own.items():
            resource.setrlimit(kind, limits)
    assert failed.value.exit_code == 1
    assert "warmlog: cannot start threads for disk (4): can't start new thread; the limit may be" in failed.value.output
    assert "Traceback" not in failed.value.output
    with broker, WireClient(broker.address) as client:
        client.create_topic("t")
        assert produced(client) == 0


def threads_of(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/task").iterdir()))


def test_all_threads_run_when_the_broker_is_ready_and_no_more_come(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "few", cold_read_threads=1, flush_threads=2, log_cleaner_threads=1) as broker:
        few = threads_of(broker)
    with BrokerProcess(tmp_path / "many", cold_read_threads=9, flush_threads=6, log_cleaner_threads=3) as broker:
        many = threads_of(broker)
        assert many - few == 8 + 4 + 2
        for name in ("a", "b"):
            with WireClient(broker.address) as client:
                client.create_topic(name, partitions=2)
                for _ in range(20):
                    client.produce(name, RECORD)
                client.fetch(name, 0)
        assert threads_of(broker) == many


def malloc_arenas(pid: int) -> int:
    """Those of threads: each lies at the start of 64 MiB of its own, most of which may not be touched yet."""
    places = [line.split()[:2] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    arenas = 0
    for (place, rights), (next_place, next_rights) in pairwise(places):
        start, end = (int(address, 16) for address in place.split("-"))
        next_start, next_end = (int(address, 16) for address in next_place.split("-"))
        is_whole = end == next_start and next_end - start == ARENA_BYTES
        arenas += is_whole and (rights, next_rights) == ("rw-p", "---p")
    return arenas


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.parametrize("told", ["", "8"])
def test_the_threads_of_a_broker_share_one_arena_unless_it_is_told(tmp_path: Path, told: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GLIBC_TUNABLES", raising=False)
        patch.delenv("MALLOC_ARENA_MAX", raising=False)
        if told:
            patch.setenv("MALLOC_ARENA_MAX", told)
        with BrokerProcess(tmp_path / "data", segment_bytes=1024) as broker:
            with WireClient(broker.address) as client:
                client.create_topic("t", partitions=2)
                for _ in range(20):
                    produced(client)
            assert (malloc_arenas(broker.pid) > 0) == bool(told)
