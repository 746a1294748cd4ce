"""A leader and a follower, each with a log of its own: what is copied, committed, and kept over a change of roles."""

from collections.abc import Callable
from typing import cast

import pytest

from present import present
from truncating import truncate_to
from unit.broker.conftest import NOW_MS, FakeDisk, MakePartition, flush
from warmlog_broker.replica.partition import Partition
from warmlog_protocol import errors
from warmlog_protocol.batch import ControlType
from warmlog_protocol.messages import ACKS_ALL
from wire_client import batch_of


class Pair:
    """Two replicas of one partition. The follower fetches when it is told to."""

    def __init__(self, leader: Partition, follower: Partition) -> None:
        self.leader, self.follower = leader, follower
        self.reported = 0
        """What the leader knows to be flushed at the follower."""
        leader.become_leader(5, lambda: min(leader.log.recovery_point, self.reported))
        follower.become_follower(5, self.committed_at_follower)

    def committed_at_follower(self) -> int:
        return min(self.follower.log.recovery_point, self.leader.log.high_watermark)

    def fetch(self, *, flush_below: int = -1) -> None:
        end_offset = self.follower.log.log_end_offset
        slices = self.leader.log.reader.read(end_offset, 1 << 20, bound="log_end").slices
        copied = b"".join(piece.pread() for piece in slices)
        self.follower.append_copied(copied, flush_below=flush_below, now_ms=NOW_MS)

    def report(self) -> None:
        self.reported = self.follower.log.recovery_point
        self.leader.advance()

    @property
    def watermarks(self) -> tuple[int, int]:
        return self.leader.log.high_watermark, self.follower.log.high_watermark


@pytest.fixture
def pair(make_partition: MakePartition) -> Pair:
    return Pair(make_partition(0), make_partition(1))


def append(partition: Partition, done: list[errors.ApiError | None] | None = None, value: bytes = b"x") -> None:
    note: Callable[[errors.ApiError | None], None] | None = None if done is None else done.append
    partition.append(batch_of([value], timestamp_ms=NOW_MS), ACKS_ALL, note, now_ms=NOW_MS)


def disk_of(partition: Partition) -> FakeDisk:
    return cast("FakeDisk", partition.disk)


def test_what_both_have_flushed_is_committed_and_only_then_acknowledged(pair: Pair) -> None:
    done = list[errors.ApiError | None]()
    append(pair.leader, done)
    pair.fetch(flush_below=1)
    flush(pair.leader)
    assert (pair.watermarks, done) == ((0, 0), []), "the follower has it in memory only"
    flush(pair.follower)
    assert (pair.watermarks, done) == ((0, 0), []), "the leader has not heard of it"
    pair.report()
    assert (pair.watermarks, done) == ((1, 0), [None])
    pair.follower.advance()
    assert pair.watermarks == (1, 1)
    assert pair.follower.log.epochs.entries == pair.leader.log.epochs.entries == ((5, 0),)


def test_a_follower_flushes_at_once_what_appends_wait_for(pair: Pair) -> None:
    append(pair.leader)
    pair.fetch()
    assert 0 not in disk_of(pair.follower).flushes
    append(pair.leader)
    pair.fetch(flush_below=2)
    assert disk_of(pair.follower).flushes[-1] == 0


def test_a_follower_takes_over_with_what_was_acknowledged_and_the_old_leader_acknowledges_nothing_more(
    pair: Pair,
) -> None:
    acknowledged, late = list[errors.ApiError | None](), list[errors.ApiError | None]()
    append(pair.leader, acknowledged)
    pair.fetch()
    for each in (pair.leader, pair.follower):
        flush(each)
    pair.report()
    append(pair.leader, late, b"lost")
    plan = present(pair.leader.prepare_flush())
    plan.run()
    pair.follower.become_leader(6)
    assert (pair.follower.log.high_watermark, acknowledged) == (1, [None])
    append(pair.follower, value=b"new")
    flush(pair.follower)
    pair.leader.become_follower(6, lambda: 1)
    pair.leader.flushed(plan)
    pair.leader.wake()
    assert isinstance(late[0], errors.NotLeaderOrFollower)
    assert pair.leader.log.high_watermark == 1
    diverging = present(pair.follower.log.reader.divergence(2, 5))
    assert diverging == (5, 1)
    truncate_to(pair.leader.log, diverging.end_offset, NOW_MS)
    pair.leader, pair.follower = pair.follower, pair.leader
    pair.fetch()
    assert pair.follower.log.epochs.entries == pair.leader.log.epochs.entries == ((5, 0), (6, 1))
    read = [each.log.reader.read(0, 1 << 20, bound="log_end").slices for each in (pair.leader, pair.follower)]
    assert read[0][0].pread() == read[1][0].pread()


def test_markers_and_producers_are_copied_as_well(pair: Pair) -> None:
    guard = pair.leader.log.producers.start_verification(1, 0, NOW_MS)
    batch = batch_of([b"a"], timestamp_ms=NOW_MS, producer=(1, 0), base_sequence=0, is_transactional=True)
    pair.leader.append(batch, ACKS_ALL, None, now_ms=NOW_MS, next_producer_id=2, guard=guard)
    pair.fetch()
    assert pair.follower.log.producers.in_transactions
    pair.leader.append_end_transaction(1, 1, ControlType.ABORT, 0, lambda _: None, now_ms=NOW_MS)
    pair.fetch()
    assert not list(pair.follower.log.producers.in_transactions)
    assert present(pair.follower.log.producers.get(1)).epoch == 1


def test_a_follower_whose_disk_refuses_takes_nothing(pair: Pair) -> None:
    append(pair.leader)
    disk_of(pair.follower).room.is_short = True
    with pytest.raises(errors.DiskFull):
        pair.fetch()
    disk_of(pair.follower).room.is_short = False
    pair.follower.set_read_only("its disk takes no writes")
    with pytest.raises(errors.StorageError, match="takes no records"):
        pair.fetch()
    pair.leader.resign(7)
    with pytest.raises(AssertionError):
        pair.leader.append_copied(b"", flush_below=-1, now_ms=NOW_MS)
