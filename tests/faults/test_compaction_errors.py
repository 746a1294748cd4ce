"""Compaction without memory, descriptors or room waits until there are some; nothing is lost, nothing is given up."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_thread import BrokerThread
from integration.test_compaction import fill, records_of, state_of, wait_until
from warmlog_broker.storage.cleaner import cleaner
from warmlog_broker.storage.segment import file_records
from wire_client import WireClient

TOPIC = {"cleanup_policy": "compact", "segment_bytes": "4096", "min_cleanable_dirty_ratio": "0"}
PATIENCE_S = 0.3


def without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(memory_bytes: int) -> None:
        raise MemoryError

    monkeypatch.setattr(cleaner, "OffsetMap", refuse)


def without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if ".cleaned" in str(path):
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)


def without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def refuse(descriptor: int, parts: tuple[bytes, ...], position: int) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.endswith(".cleaned"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, parts, position)

    monkeypatch.setattr(file_records, "_pwritev", refuse)


@pytest.mark.parametrize("take_away", [without_memory, without_descriptors, without_room])
def test_compaction_goes_on_once_there_is_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take_away: Callable[[pytest.MonkeyPatch], None]
) -> None:
    with BrokerThread(tmp_path, log_cleaner_backoff_ms=20) as broker, WireClient(broker.address) as client:
        client.create_topic("state", **TOPIC)
        with monkeypatch.context() as patch:
            take_away(patch)
            expected = fill(client, "state")
            time.sleep(PATIENCE_S)  # it has tried several times
            assert len(records_of(client, "state")) > 500  # segments without any latest value go, and nothing else
        wait_until(lambda: len(records_of(client, "state")) < 500)
        assert state_of(records_of(client, "state")) == expected
    assert broker.was_clean
