"""When a data directory takes records, by the room on its disk."""

from pathlib import Path

import pytest

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.broker_settings import MIB
from warmlog_broker.replica.disk_space import DiskRoom, reserve_bytes
from warmlog_protocol.errors import DiskFull

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
