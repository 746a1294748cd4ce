"""A disk that refuses anything while a topic is made: what a later start finds of it, whatever it was."""

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from opened_logs import opened_logs
from unit.broker.topics.test_topics import Room
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.directory_set import lock_and_read
from warmlog_broker.metadata.metadata_log import TopicCreated
from warmlog_protocol.errors import StorageError

CALLS = ("mkdir", "open", "replace", "rename", "fsync", "fdatasync", "pwrite", "pwritev", "write", "unlink")
MAX_CALLS = 200


class BrokenDisk:
    """Lets the `first_failing`-th call that concerns `path` fail with EIO, or all from it on."""

    def __init__(self, path: Path, first_failing: int, *, goes_on: bool) -> None:
        self.calls = 0
        self._prefix = str(path)
        self._first_failing = first_failing
        self._goes_on = goes_on

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in CALLS:
            patch.setattr(os, name, self._breaking(getattr(os, name)))

    def _breaking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse_or_call(target: Any, *arguments: Any, **named: Any) -> Any:
            path = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else os.fspath(target)
            if str(path).startswith(self._prefix):
                self.calls += 1
                is_late = self.calls > self._first_failing
                if self.calls == self._first_failing or (self._goes_on and is_late):
                    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return call(target, *arguments, **named)

        return refuse_or_call


def started(paths: list[Path]) -> tuple[dict[str, list[str]], dict[str, bytes]]:
    """What a start makes of the directories: the failure of each partition ("" for none), and the topics' ids."""
    config = BrokerConfig(data_dirs=",".join(map(str, paths)))
    directories, metadata_log = lock_and_read(config)
    try:
        stored = opened_logs(directories, metadata_log, config)
        failures = {entry.name: [each.failure for each in loaded.values()] for entry, loaded in stored.topics}
        return failures, {entry.name: entry.topic_id for entry, _ in stored.topics}
    finally:
        metadata_log.close()
        directories.close()


def holders(paths: list[Path], name: str) -> list[Path]:
    return [path for path in paths if (path / name).exists()]


R = TypeVar("R", bound=Room)


async def each_call_failing(
    tmp_path: Path, make: Callable[..., R], existing: str, change: Callable[[R], Awaitable[object]], *, goes_on: bool
) -> AsyncIterator[tuple[list[Path], Any]]:
    """Yield the directories and what `change` returned, for each call to the disk of the second one that may fail."""
    for first_failing in count(1):
        assert first_failing < MAX_CALLS
        paths = [tmp_path / f"{first_failing}{name}" for name in "ab"]
        room = make(*paths)
        await room.create(existing, 1)
        disk = BrokenDisk(paths[1], first_failing, goes_on=goes_on)
        with pytest.MonkeyPatch.context() as patch:
            disk.install(patch)
            changed = await change(room)
            for directory in room.directories:
                await directory.wait_for_probe()
        await room.close()
        yield paths, changed
        if disk.calls < first_failing:
            break


@pytest.mark.parametrize("goes_on", [False, True])
async def test_whatever_fails_in_one_directory_no_start_stumbles_over_it(tmp_path: Path, goes_on: bool) -> None:
    outcomes = set()
    # "full", so that the second directory is the emptier one.
    async for paths, created in each_call_failing(
        tmp_path, Room, "full", lambda room: room.create("t", 1), goes_on=goes_on
    ):
        outcomes.add(type(created))
        for _ in range(2):
            failures, ids = started(paths)
            assert all(failure == "" for each in failures.values() for failure in each), (paths, failures)
            assert len(holders(paths, "t-0")) == ("t" in ids)
        if isinstance(created, TopicCreated):
            assert ids["t"] == created.topic_id
    assert TopicCreated in outcomes


async def test_what_was_begun_is_taken_away_at_once_where_the_disk_lets_it(tmp_path: Path) -> None:
    room = Room(tmp_path / "a", tmp_path / "b")
    await room.create("full", 1)
    with pytest.MonkeyPatch.context() as patch:
        BrokenDisk(tmp_path / "b" / "t-0" / "partition.metadata", 1, goes_on=False).install(patch)
        assert isinstance(await room.create("t", 1), TopicCreated)
    assert holders([tmp_path / "a", tmp_path / "b"], "t-0") == [tmp_path / "a"]
    assert [path.parent for path in room.remover] == [tmp_path / "b"]
    await room.close()


@pytest.mark.parametrize("times", [1, 2])
async def test_a_topic_whose_places_cannot_be_written_down_is_taken_back_or_made_by_the_next_start(
    tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata log refuses the second commit of the creation, or that one and the next."""
    room = Room(tmp_path / "a", tmp_path / "b")
    room.refuse_commits(monkeypatch, times)
    assert isinstance(await room.create("t", 2), StorageError)
    again = await room.create("t", 2)
    await room.close()
    failures, _ = started([tmp_path / "a", tmp_path / "b"])
    assert failures == {"t": ["", ""]}
    assert isinstance(again, TopicCreated) == (times == 1)
    if times == 2:
        assert "the next start finishes it" in str(again)
