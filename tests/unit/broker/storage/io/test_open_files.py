"""Descriptors close once they are not needed, and at most the limit are open unless all of them are needed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmlog_broker.storage.index.transaction_index import AbortedTxn, TransactionIndex
from warmlog_broker.storage.io.open_files import OpenFile, OpenFiles
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.batch.header import CRC_START


class Resource:
    """Something that holds a file, as a log does."""

    def __init__(self, path: Path, open_files: OpenFiles, count: int = 1) -> None:
        self.path = path
        self.open_files = open_files
        self.count = count
        self.is_busy = False
        self.file: OpenFile | None = None

    def use(self) -> OpenFile:
        if self.file is None:
            self.file = OpenFile(str(self.path), os.O_RDWR | os.O_CREAT)
            self.open_files.add(self, self.count)
        else:
            self.open_files.touch(self)
        return self.file

    def has_unflushed_writes(self) -> bool:
        return self.is_busy

    def let_go(self) -> None:
        self.file = None


def resources(directory: Path, open_files: OpenFiles, count: int) -> list[Resource]:
    return [Resource(directory / f"{number}", open_files) for number in range(count)]


def is_open(descriptor: int) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").exists()


def test_a_descriptor_is_closed_with_the_last_reference_to_it(tmp_path: Path) -> None:
    file = OpenFile(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT)
    descriptor = file.fd
    in_other_hands = file
    del file
    assert is_open(descriptor)
    assert os.pwrite(in_other_hands.fd, b"x", 0) == 1
    del in_other_hands
    assert not is_open(descriptor)


def test_a_file_that_cannot_be_opened_leaves_nothing_to_close(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OpenFile(str(tmp_path / "missing"), os.O_RDONLY)


def test_children_do_not_inherit_descriptors(tmp_path: Path) -> None:
    assert not os.get_inheritable(OpenFile(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT).fd)


def test_what_went_unused_for_longest_lets_go_first(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=3)
    first, second, third, fourth = resources(tmp_path, open_files, 4)
    for resource in (first, second, third):
        resource.use()
    first.use()
    fourth.use()
    assert [resource.file is not None for resource in (first, second, third, fourth)] == [True, False, True, True]
    assert open_files.open_count == 3


def test_nobody_lets_go_while_it_has_unflushed_writes(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=2)
    busy, idle, other, last = resources(tmp_path, open_files, 4)
    busy.use()
    busy.is_busy = True
    for resource in (idle, other, last):
        resource.use()
    assert busy.file is not None
    assert idle.file is other.file is None
    assert open_files.open_count == 2


def test_the_limit_is_passed_while_all_are_busy_and_met_again_later(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=2)
    busy = resources(tmp_path, open_files, 5)
    for resource in busy:
        resource.use()
        resource.is_busy = True
    assert open_files.open_count == 5
    for resource in busy:
        resource.is_busy = False
    late = Resource(tmp_path / "late", open_files)
    late.use()
    assert open_files.open_count == 2
    assert late.file is not None


def test_a_thousand_busy_ones_are_not_asked_at_each_eviction(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=10)
    asked = 0

    class Counted(Resource):
        def has_unflushed_writes(self) -> bool:
            nonlocal asked
            asked += 1
            return self.is_busy

        def use(self) -> OpenFile:
            self.file = shared
            open_files.add(self, 1)
            return shared

    shared = OpenFile(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT)
    busy = [Counted(tmp_path / "file", open_files) for _ in range(1000)]
    for resource in busy:
        resource.use()
        resource.is_busy = True
    idle = [Counted(tmp_path / "file", open_files) for _ in range(1000)]
    for number, resource in enumerate(idle):
        resource.use()
        assert open_files.open_count <= 1001
        if number == 500:
            for late in busy[:700]:
                late.is_busy = False
    assert open_files.open_count == 301
    assert asked < 20_000
    assert all(resource.file is not None for resource in busy[700:])
    for resource in busy:
        resource.is_busy = False
    Counted(tmp_path / "file", open_files).use()
    assert open_files.open_count == 10


def test_what_was_busy_until_now_stays_before_what_went_unused(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=2)
    busy, unused, last = resources(tmp_path, open_files, 3)
    busy.use()
    busy.is_busy = True
    unused.use()
    last.use()
    assert unused.file is None
    busy.is_busy = False
    unused.use()
    assert busy.file is not None
    assert last.file is None


def test_a_resource_counts_for_as_much_as_it_holds(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=4)
    large = Resource(tmp_path / "large", open_files, count=3)
    small = resources(tmp_path, open_files, 2)
    large.use()
    small[0].use()
    assert open_files.open_count == 4
    small[1].use()
    assert large.file is None
    assert open_files.open_count == 2


def test_adding_again_replaces_the_count_and_discarding_forgets_it(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=10)
    resource = Resource(tmp_path / "file", open_files)
    resource.use()
    open_files.add(resource, 2)
    assert open_files.open_count == 2
    open_files.discard(resource)
    open_files.discard(resource)
    assert open_files.open_count == 0
    open_files.touch(resource)
    assert open_files.open_count == 0


def test_a_limit_of_nothing_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="limit 0"):
        OpenFiles(limit=0)


def test_all_let_go_at_the_end_whether_they_are_busy_or_not(tmp_path: Path) -> None:
    open_files = OpenFiles(limit=2)
    made = resources(tmp_path, open_files, 4)
    descriptors = []
    for number, resource in enumerate(made):
        resource.is_busy = number < 2
        descriptors.append(resource.use().fd)
    assert any(map(is_open, descriptors))
    open_files.close_all()
    assert not any(map(is_open, descriptors))
    assert open_files.open_count == 0
    made[0].use()
    assert open_files.open_count == 1


# A file may be closed for another thread at any moment: not while a system call uses its descriptor


BATCH = encode_batch([b"value"], timestamps_ms=[1])
ENTRY = AbortedTxn(1, 0, 3, 4)


def evicting(let_go: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, after another thread has had the file closed."""

    def evict_and_call(*arguments: Any) -> Any:
        let_go()
        return call(*arguments)

    return evict_and_call


def test_a_base_offset_is_read_from_a_file_that_is_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = FileRecords.open(tmp_path / "00000000000000000000.log", OpenFiles())
    records.append(BATCH[:CRC_START], BATCH[CRC_START:])
    records.mark_synced(records.writes)
    monkeypatch.setattr("warmlog_broker.storage.segment.file_records._pread", evicting(records.let_go, os.pread))
    assert records.base_offset_at(0) == 0
    records.close()


@pytest.mark.parametrize("name", ["pread", "fstat"])
def test_a_transaction_index_is_used_while_it_is_evicted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "00000000000000000000.txnindex"
    first = TransactionIndex(path, 0, OpenFiles())
    first.append(ENTRY)
    first.close()
    index = TransactionIndex(path, 0, OpenFiles())
    monkeypatch.setattr(os, name, evicting(index.let_go, getattr(os, name)))
    assert list(index) == [ENTRY]
    index.append(AbortedTxn(1, 4, 7, 8))
    index.sanity_check()
    index.close()
