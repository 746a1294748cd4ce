"""The indexes against a list and `bisect`, through every order of use, closings and crashes included."""

from bisect import bisect_right
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from unit.broker.storage.index.index_files import BASE, AnyIndex, AnyIndexClass, add, entry_of, looked_up, no_entry
from unit.broker.storage.log_room import QUICK
from warmlog_broker.storage.index.abstract_index import MAX_UNWRITTEN
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.io.open_files import OpenFiles

FIRST_SLOTS = 40


class IndexMachine(RuleBasedStateMachine):
    """One index and the list of raw (key, value) pairs that it should have."""

    index_class: ClassVar[AnyIndexClass]

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(mkdtemp(prefix="warmlog-", dir=QUICK))
        self.open_files = OpenFiles(limit=1)
        self.stored: list[tuple[int, int]] = []
        self.index = self.open()

    def open(self, *, is_writable: bool = True) -> AnyIndex:
        return self.index_class(
            self.directory / "index",
            BASE,
            open_files=self.open_files,
            max_index_bytes=FIRST_SLOTS * self.index_class.entry_bytes,
            is_writable=is_writable,
        )

    @rule(gaps=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 500)), min_size=1, max_size=2 * MAX_UNWRITTEN))
    def append(self, gaps: list[tuple[int, int]]) -> None:
        for key_gap, value_gap in gaps:
            if self.index.entries >= self.index.max_entries:
                self.index.resize(2 * self.index.file_bytes + 4 * self.index.entry_bytes)
            key, value = self.stored[-1] if self.stored else (0, 0)
            pair = (key + key_gap, value + value_gap)
            add(self.index, *pair)
            self.stored.append(pair)

    @rule(key=st.integers(-5, 100_000), part=st.floats(0, 1), shift=st.integers(-2, 2), is_near=st.booleans())
    def lookup(self, key: int, part: float, shift: int, is_near: bool) -> None:
        if is_near and self.stored:
            key = self.stored[int(part * (len(self.stored) - 1))][0] + shift
        slot = bisect_right(self.stored, key, key=lambda pair: pair[0]) - 1
        expected = no_entry(self.index) if slot < 0 else entry_of(self.index, *self.stored[slot])
        assert looked_up(self.index, key) == expected

    @rule(part=st.floats(0, 1.1), shift=st.integers(-1, 1))
    def truncate(self, part: float, shift: int) -> None:
        is_offset = self.index_class is OffsetIndex
        offsets = [key if is_offset else value for key, value in self.stored]
        target = int(part * (offsets[-1] if offsets else 10)) + shift
        self.index.truncate_to(BASE + target)
        kept = [offset for offset in offsets if offset < target]
        del self.stored[len(kept) :]

    @rule()
    def truncate_all(self) -> None:
        self.index.truncate()
        self.stored.clear()

    @rule(more=st.integers(0, 300))
    def resize(self, more: int) -> None:
        self.index.resize((len(self.stored) + more) * self.index.entry_bytes)

    @rule()
    def trim(self) -> None:
        self.index.trim()

    @rule()
    def write_out(self) -> None:
        self.index.write_out()

    @rule()
    def evict(self) -> None:
        self.index.let_go()

    @rule()
    def close_and_reopen(self) -> None:
        self.index.close()
        self.index = self.open()
        self.index.sanity_check()

    @rule()
    def close_and_read_only(self) -> None:
        self.index.close()
        with self.open(is_writable=False) as reader:
            assert list(reader) == [entry_of(reader, *pair) for pair in self.stored]
        self.index = self.open()

    @precondition(lambda self: self.stored)
    @rule(more=st.integers(2, 300))
    def crash_with_padding(self, more: int) -> None:
        """What was written is found again, and the file is told from one that was closed."""
        self.index.resize((len(self.stored) + more) * self.index.entry_bytes)
        written = self.index._written
        self.index.close_handles()
        self.index = self.open()
        assert self.index.is_padded
        del self.stored[written:]

    @invariant()
    def has_what_was_stored(self) -> None:
        assert self.index.entries == len(self.stored)
        assert [tuple(entry) for entry in self.index] == [entry_of(self.index, *pair) for pair in self.stored]
        assert self.open_files.open_count <= 2

    def teardown(self) -> None:
        self.index.close()
        rmtree(self.directory)


class OffsetIndexMachine(IndexMachine):
    index_class = OffsetIndex


class TimeIndexMachine(IndexMachine):
    index_class = TimeIndex


_SETTINGS = settings(max_examples=40, stateful_step_count=30, deadline=None)

TestOffsetIndexModel = OffsetIndexMachine.TestCase
TestOffsetIndexModel.settings = _SETTINGS
TestTimeIndexModel = TimeIndexMachine.TestCase
TestTimeIndexModel.settings = _SETTINGS
