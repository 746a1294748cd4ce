"""A compacted log against a list of all that was ever written to it.

Whatever is written, rolled, compacted, restarted and torn apart by crashes in the middle of a compaction: a reader from
the start always ends with the last committed value of each key, and each record is at its original offset.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from unit.broker.storage.cleaner.compaction_room import COMPACT, CompactionRoom, Pair
from unit.broker.storage.crash_points import crash_at
from unit.broker.storage.log_room import QUICK
from warmlog_broker.storage.cleaner.offset_map import ENTRY_BYTES
from warmlog_protocol.codec.compression import Codec

PAIRS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c", b"d", b"a key of more than thirty-two bytes"]), st.booleans() | st.just(True)
    ),
    min_size=1,
    max_size=4,
)
PLAIN_PRODUCER = 50
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class Written(NamedTuple):
    """A record as it was appended, and the transaction that it belongs to, if any."""

    offset: int
    key: bytes
    value: bytes | None
    transaction: int | None


class CompactedLog(RuleBasedStateMachine):
    """What is written counts from its flush on; every rule that tears the log apart flushes first."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory(dir=QUICK)
        self.room = CompactionRoom(Path(self.temporary.name), COMPACT)
        self.written: list[Written] = []
        self.ends: list[str] = []
        """Of each transaction that was begun, how it ended."""
        self.open: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.last_sent: tuple[int, list[Pair], int] | None = None
        self.number = 0

    def teardown(self) -> None:
        self.room.log.fail("the test is over")
        self.temporary.cleanup()

    def pairs_of(self, drawn: list[tuple[bytes, bool]]) -> list[Pair]:
        self.number += 1
        return [
            (key, b"%d.%d" % (self.number, place) if has_value else None)
            for place, (key, has_value) in enumerate(drawn)
        ]

    def note(self, first_offset: int, pairs: list[Pair], transaction: int | None = None) -> None:
        for place, (key, value) in enumerate(pairs):
            assert key is not None
            self.written.append(Written(first_offset + place, key, value, transaction))

    @rule(drawn=PAIRS, rows=st.booleans(), codec=st.sampled_from([Codec.NONE, Codec.ZSTD]))
    def put(self, drawn: list[tuple[bytes, bool]], rows: bool, codec: Codec) -> None:
        pairs = self.pairs_of(drawn)
        self.note(self.room.put(*pairs, rows=rows, codec=codec).first_offset, pairs)

    @rule(drawn=PAIRS)
    def put_with_a_producer(self, drawn: list[tuple[bytes, bool]]) -> None:
        pairs = self.pairs_of(drawn)
        sequence = self.sequences.get(PLAIN_PRODUCER, 0)
        info = self.room.put(*pairs, producer=(PLAIN_PRODUCER, 0, sequence))
        assert not info.is_duplicate
        self.sequences[PLAIN_PRODUCER] = sequence + len(pairs)
        self.last_sent = (info.first_offset, pairs, sequence)
        self.note(info.first_offset, pairs)

    @precondition(lambda self: self.last_sent is not None)
    @rule()
    def send_the_last_batch_again(self) -> None:
        """CL-04"""
        assert self.last_sent is not None
        first_offset, pairs, sequence = self.last_sent
        info = self.room.put(*pairs, producer=(PLAIN_PRODUCER, 0, sequence))
        assert (info.is_duplicate, info.first_offset) == (True, first_offset)

    @rule(producer=st.integers(1, 2), drawn=PAIRS, rows=st.booleans())
    def put_in_a_transaction(self, producer: int, drawn: list[tuple[bytes, bool]], rows: bool) -> None:
        pairs = self.pairs_of(drawn)
        sequence = self.sequences.get(producer, 0)
        info = self.room.put_in_transaction(*pairs, producer=(producer, 0, sequence), rows=rows)
        self.sequences[producer] = sequence + len(pairs)
        if producer not in self.open:
            self.open[producer] = len(self.ends)
            self.ends.append(OPEN)
        self.note(info.first_offset, pairs, self.open[producer])

    @precondition(lambda self: self.open)
    @rule(commits=st.booleans(), data=st.data())
    def end_a_transaction(self, commits: bool, data: st.DataObject) -> None:
        producer = data.draw(st.sampled_from(sorted(self.open)))
        self.room.end_transaction(producer, commits=commits)
        self.ends[self.open.pop(producer)] = COMMITTED if commits else ABORTED

    @rule()
    def roll(self) -> None:
        self.room.roll()

    @rule(passed_ms=st.sampled_from([1, 500, 1500]))
    def let_time_pass(self, passed_ms: int) -> None:
        self.room.now_ms += passed_ms

    @rule(keys=st.sampled_from([1, 3, 1000]))
    def compact(self, keys: int) -> None:
        self.room.flush()
        self.room.compact(memory_bytes=keys * ENTRY_BYTES)

    @rule()
    def compact_from_the_start(self) -> None:
        self.room.flush()
        self.room.forget_compaction()
        self.room.compact()

    @rule(step=st.integers(0, 40), loses_snapshots=st.booleans())
    def crash_while_it_is_compacted(self, step: int, loses_snapshots: bool) -> None:
        self.room.flush()
        with crash_at(step):
            self.room.compact()
        self.room.log.fail("dead")
        if loses_snapshots:
            for name in self.room.files(".snapshot"):
                self.room.path(name).unlink()
        self.room.crash()
        assert self.room.log.recovery_report.damage == []

    @rule()
    def restart(self) -> None:
        self.room.flush()
        self.room.restart()

    @rule()
    def recover_all(self) -> None:
        self.room.flush()
        self.room.crash(recovery_point=0)
        assert self.room.log.recovery_report.cut_bytes == 0
        self.room.flush()

    @invariant()
    def what_survives_lies_where_it_lay(self) -> None:
        by_offset = {record.offset: (record.key, record.value) for record in self.written}
        found = self.room.records()
        assert [offset for offset, *_ in found] == sorted({offset for offset, *_ in found})
        assert all(by_offset[offset] == (key, value) for offset, _, key, value in found)

    @invariant()
    def a_reader_ends_with_the_last_committed_value_of_each_key(self) -> None:
        self.room.flush()
        stable = self.room.log.bounds.last_stable_offset
        undecided = [r.offset for r in self.written if r.transaction is not None and self.ends[r.transaction] == OPEN]
        assert stable == min(undecided, default=self.room.log.log_end_offset)
        expected: dict[bytes, bytes] = {}
        for record in self.written:
            is_committed = record.transaction is None or self.ends[record.transaction] == COMMITTED
            if is_committed and record.offset < stable:
                expected.pop(record.key, None)
                if record.value is not None:
                    expected[record.key] = record.value
        assert self.room.committed_state() == expected


CompactedLog.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCompactedLog = CompactedLog.TestCase
