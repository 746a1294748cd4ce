"""A MemoryError in the middle of an append: what was written is taken back, or the log says that it does not know."""

from collections.abc import Callable
from pathlib import Path

import pytest

from unit.broker.storage.log_room import LogRoom, make_batch, read_values
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.record import file_records
from warmlog_broker.storage.record.file_records import FileRecords
from warmlog_protocol.errors import OutOfResources, StorageError


@pytest.fixture
def room(quick_path: Path) -> LogRoom:
    return LogRoom(quick_path)


def out_of_memory(*_arguments: object) -> None:
    raise MemoryError


def before_the_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(file_records, "_pwritev", out_of_memory)


def after_the_write(patch: pytest.MonkeyPatch) -> None:
    real = FileRecords.append

    def append(self: FileRecords, prefix: bytes, covered: bytes) -> int:
        real(self, prefix, covered)
        raise MemoryError

    patch.setattr(FileRecords, "append", append)


@pytest.mark.parametrize("fail", [before_the_write, after_the_write])
def test_the_log_ends_as_before_and_goes_on(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch, fail: Callable[[pytest.MonkeyPatch], None]
) -> None:
    room.append(b"a")
    room.append(b"b")
    with monkeypatch.context() as patch:
        fail(patch)
        for _ in range(3):
            with pytest.raises(OutOfResources):
                room.append(b"lost")
            assert room.log.log_end_offset == 2
    assert room.append(b"c").first_offset == 2
    room.flush()
    room.crash()
    assert read_values(room.log) == [b"a", b"b", b"c"]
    assert not room.log.recovery_report.damage


def test_a_batch_that_is_not_known_to_be_its_producers_ends_the_log(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(b"a", producer=(7, 0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(ProducerStates, "update", out_of_memory)
        with pytest.raises(StorageError, match="out of memory"):
            room.append_bytes(batch)
    with pytest.raises(StorageError, match="offline"):
        room.append(b"b")
