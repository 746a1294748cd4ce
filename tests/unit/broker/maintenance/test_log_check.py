"""The check in the background: what recovery has left out is read once, and damage there is known from then on."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from truncating import truncate_to
from unit.broker.storage.log_files import overwrite
from unit.broker.storage.log_room import LogRoom, read_values
from unit.broker.storage.restart_room import BATCH, ONE_SEGMENT, fill, take_point
from warmlog_broker.maintenance.log_check import LogCheck
from warmlog_broker.replica.partition_state import PartitionState
from warmlog_broker.storage.log import flusher
from warmlog_broker.storage.recovery.recovery import UncheckedRange
from warmlog_protocol.errors import CorruptBatch


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogRoom:
    """A log of 10 batches, of which the first 8 are below its restart point."""
    monkeypatch.setattr(flusher, "IDLE_BATCHES", 1)
    room = LogRoom(tmp_path, ONE_SEGMENT)
    fill(room, 0, 8)
    take_point(room)
    fill(room, 8, 10)
    return room


def check_of(*rooms: LogRoom, replication: object = None) -> LogCheck:
    """The check of logs of a broker that is alone, unless `replication` is given."""
    partitions = [
        SimpleNamespace(key=room.log.key, log=room.log, allows=PartitionState.ONLINE.allows, replication=replication)
        for room in rooms
    ]
    topics: Any = SimpleNamespace(partitions=partitions)
    return LogCheck(topics)


async def test_damage_is_reported_with_its_position_and_refused_from_then_on(
    room: LogRoom, caplog: pytest.LogCaptureFixture
) -> None:
    overwrite(room.segment_path(0), 3 * BATCH + 70, b"x")
    room.crash()
    check = check_of(room)
    caplog.clear()
    check.start()
    await check.finish()
    (reported,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert f"offsets 3 to 3 are damaged, positions {3 * BATCH} to {4 * BATCH}" in reported
    assert (check.damage_count, check.unchecked_bytes) == (1, 0)
    assert [damage.first_offset for damage in room.log.recovery_report.damage] == [3]
    with pytest.raises(CorruptBatch, match=f"{3 * BATCH} to {4 * BATCH}"):
        room.log.reader.read(3, 1000)
    assert len(read_values(room.log, 4)) == 6


async def test_the_other_replicas_are_told_of_damage(room: LogRoom) -> None:
    overwrite(room.segment_path(0), 3 * BATCH + 70, b"x")
    room.crash()
    told: list[str] = []
    check = check_of(room, replication=SimpleNamespace(damaged=told.append))
    check.start()
    await check.finish()
    assert [text.partition(": ")[2][:26] for text in told] == ["offsets 3 to 3 are damaged"]


async def test_a_sound_log_is_read_once(room: LogRoom, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    room.crash()
    check = check_of(room)
    check.start()
    await check.finish()
    assert f"checked {8 * BATCH} bytes of 1 logs in the background" in caplog.text
    caplog.clear()
    check.start()
    await check.finish()
    assert caplog.text == ""
    assert check.damage_count == 0


async def test_after_a_clean_stop_nothing_is_read(room: LogRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    room.flush()
    room.restart()
    monkeypatch.setattr(UncheckedRange, "check", lambda *_: pytest.fail("there is nothing to check"))
    check = check_of(room)
    check.start()
    await check.finish()


async def test_a_segment_that_was_removed_meanwhile_is_left_out(room: LogRoom) -> None:
    room.crash()
    room.segment_path(0).unlink()
    check = check_of(room)
    check.start()
    await check.finish()
    assert check.unchecked_bytes == 0


async def test_a_log_that_is_cut_meanwhile_is_left_out(room: LogRoom) -> None:
    room.crash()
    check = check_of(room)
    check.start()
    truncate_to(room.log, 3, room.now_ms)
    await check.finish()
    assert check.unchecked_bytes == 0
    assert room.log.recovery_report.damage == []


async def test_a_stop_ends_it_in_the_middle(room: LogRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    room.crash()
    check = check_of(room)
    began = asyncio.Event()
    loop = asyncio.get_running_loop()
    real = UncheckedRange.check

    def slow(self: UncheckedRange, after_bytes: Any) -> object:
        def after(size_bytes: int) -> None:
            loop.call_soon_threadsafe(began.set)
            while True:
                after_bytes(size_bytes)

        return real(self, after)

    monkeypatch.setattr(UncheckedRange, "check", slow)
    check.start()
    await asyncio.wait_for(began.wait(), 25)
    await asyncio.wait_for(check.stop(), 25)
    assert check.unchecked_bytes > 0
