"""Data directories while the broker runs: looking at them, and their room."""

import errno
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import pytest_asyncio

from unit.broker.conftest import NOW_MS, MakePartition
from unit.broker.data_directories import open_directory
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.broker_settings import MIB
from warmlog_broker.replica.disk_space import DiskRoom, reserve_bytes
from warmlog_broker.replica.served_directories import DataDirectories, ServedDirectory
from warmlog_protocol.errors import DiskFull
from warmlog_protocol.messages import ACKS_LEADER
from wire_client import batch_of


@pytest_asyncio.fixture
async def directories(tmp_path: Path, threads: ThreadPoolExecutor) -> AsyncIterator[DataDirectories]:
    config = BrokerConfig(data_dirs=f"{tmp_path / 'a'},{tmp_path / 'b'}", disk_reserve_bytes=0)
    directories = DataDirectories(
        [
            ServedDirectory(open_directory(path), config, threads=threads, trying=threads)
            for path in (tmp_path / "a", tmp_path / "b")
        ]
    )
    yield directories
    directories.close()


async def test_one_that_does_not_tell_its_room_is_tried_and_the_others_are_looked_at(
    directories: DataDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = directories

    def fail() -> int:
        raise OSError(errno.EIO, "Input/output error")

    looked_at: list[int] = []
    tried: list[str] = []
    real_probe = first.data.probe
    monkeypatch.setattr(first.data, "free_bytes", fail)
    monkeypatch.setattr(first.data, "probe", lambda: (tried.append("first"), real_probe())[1])
    monkeypatch.setattr(second.room, "note", looked_at.append)
    await directories.check()
    await first.wait_for_probe()
    assert tried == ["first"]
    assert first.is_live
    assert len(looked_at) == 1
    assert looked_at[0] > 0


async def test_a_directory_is_found_however_its_path_is_written(directories: DataDirectories, tmp_path: Path) -> None:
    first, _ = directories
    assert directories.get(tmp_path / "b" / ".." / "a") is first
    assert directories.get(tmp_path / "c") is None
    assert directories.get(Path("a\0b")) is None
    (tmp_path / "circle").symlink_to("circle")
    assert directories.get(tmp_path / "circle") is None


async def test_who_has_moved_away_is_flushed_by_the_new_directory_alone(
    directories: DataDirectories, make_partition: MakePartition
) -> None:
    """A syncfs of the old disk says nothing of what was written to the new one."""
    first, second = directories
    partition = make_partition()
    for home in (first, second):
        directories.dismiss(partition)
        home.admit(partition)
        partition.append(batch_of([b"x"], timestamp_ms=NOW_MS), ACKS_LEADER, None, now_ms=NOW_MS)
    await first.flusher.flush_all()
    assert partition.log.recovery_point == partition.log.high_watermark == 0
    await second.flusher.flush_all()
    assert partition.log.recovery_point == partition.log.high_watermark == 2


# When a data directory takes records, by the room on its disk


RESERVE = 800


@pytest.mark.parametrize(
    ("measured", "is_short"),
    [
        pytest.param([RESERVE], False, id="as much as the reserve"),
        pytest.param([RESERVE - 1], True, id="less than the reserve"),
        pytest.param([RESERVE - 1, RESERVE + 99], True, id="once short, an eighth more is wanted"),
        pytest.param([RESERVE - 1, RESERVE + 100], False, id="an eighth more"),
        pytest.param([RESERVE - 1, RESERVE + 100, RESERVE], False, id="and then the reserve is enough again"),
    ],
)
def test_records_are_refused_below_the_reserve_and_taken_with_an_eighth_more(
    measured: list[int], is_short: bool
) -> None:
    room = DiskRoom(Path("disk"), RESERVE)
    for free_bytes in measured:
        room.note(free_bytes)
    assert room.is_short is is_short


def test_without_a_reserve_it_is_the_disk_that_refuses() -> None:
    room = DiskRoom(Path("disk"), 0)
    room.note(0)
    assert not room.is_short


def test_a_refusal_names_directory_room_and_setting_and_can_be_tried_again() -> None:
    room = DiskRoom(Path("disk"), RESERVE)
    room.note(5)
    error = room.refusal("t-0")
    assert isinstance(error, DiskFull)
    assert error.retriable
    assert str(error) == "t-0: disk takes no records, 5 bytes are left on its disk, disk.reserve.bytes is 800"


@pytest.mark.parametrize(
    ("settings", "disk_bytes", "reserve"),
    [
        pytest.param({}, 64 * MIB, 64 * MIB // 10, id="the default is a tenth of a small volume"),
        pytest.param({}, 10_000 * MIB, 128 * MIB, id="and 128 MiB of a large one"),
        pytest.param({"disk_reserve_bytes": 60 * MIB}, 64 * MIB, 60 * MIB, id="what was set is kept"),
        pytest.param({"disk_reserve_bytes": 0}, 64 * MIB, 0, id="none"),
    ],
)
def test_the_default_reserve_leaves_room_on_a_small_volume(
    settings: dict[str, int], disk_bytes: int, reserve: int
) -> None:
    assert reserve_bytes(BrokerConfig(**settings), disk_bytes) == reserve
