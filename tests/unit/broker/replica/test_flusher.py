"""Group commit: what goes into one flush, what waits for the next, and what becomes of a failure."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Container, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.broker.conftest import NOW_MS, FakeDisk, MakePartition
from waiting import until
from warmlog_broker.replica.flusher import DueFlushes, Flusher
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.partition_state import PartitionState
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_broker.storage.log.flusher import LogFlusher
from warmlog_protocol.errors import ApiError, StorageError
from wire_client import batch_of


class Waiter:
    def __init__(self) -> None:
        self.error: ApiError | None = None
        self.done = asyncio.Event()

    def complete(self, error: ApiError | None) -> None:
        self.error = error
        self.done.set()


class Anything(Container[Partition]):
    """Whatever partition there is."""

    def __contains__(self, partition: object) -> bool:
        return True


class SlowDisk:
    """Lets flushes wait for a word of the test, and fail when it says so."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.fails = False
        self.syncs = 0
        self._real = os.fdatasync

    def fdatasync(self, descriptor: int) -> None:
        assert self.may_go_on.wait(25)
        self.syncs += 1
        if self.fails:
            raise OSError(errno.EIO, "broken")
        self._real(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    slow_disk = SlowDisk()
    monkeypatch.setattr(os, "fdatasync", slow_disk.fdatasync)
    return slow_disk


@pytest.fixture
async def flusher(tmp_path: Path) -> AsyncIterator[Flusher]:
    flushed: list[Partition] = []

    def note(partitions: Sequence[Partition]) -> None:
        flushed.extend(partitions)

    made = Flusher(tmp_path, threads=2, syncfs_files=0, here=Anything(), on_flushed=note)
    yield made
    await made.flush_all()
    made.close()


class FlushedDisk(FakeDisk):
    """Has a flusher do what a partition asks for; soon only if `is_hasty`."""

    def __init__(self, flusher: Flusher, *, is_hasty: bool) -> None:
        super().__init__()
        self._flusher = flusher
        self._is_hasty = is_hasty

    def flush_soon(self, partition: Partition) -> None:
        if self._is_hasty or partition.log.flusher.is_due:
            self._flusher.flush_soon(partition)
        else:
            self._flusher.flush_within(partition, partition.config.flush_ms)

    def flush_within(self, partition: Partition, delay_ms: int) -> None:
        self._flusher.flush_within(partition, delay_ms)


def append(partition: Partition, flusher: Flusher, *, is_waited_for: bool = True) -> Waiter:
    waiter = Waiter()
    partition.disk = FlushedDisk(flusher, is_hasty=is_waited_for)
    partition.append(batch_of([b"x"], timestamp_ms=NOW_MS), -1, waiter.complete, now_ms=NOW_MS)
    return waiter


async def done(*waiters: Waiter) -> None:
    await asyncio.wait_for(asyncio.gather(*(waiter.done.wait() for waiter in waiters)), 25)


async def test_what_comes_in_one_turn_of_the_loop_goes_into_one_flush(
    flusher: Flusher, make_partition: MakePartition
) -> None:
    partitions = [make_partition(number) for number in range(3)]
    waiters = [append(partition, flusher) for partition in partitions for _ in range(5)]
    await done(*waiters)
    assert sum(flusher.flush_seconds.counts) == 1
    assert all(partition.log.high_watermark == 5 for partition in partitions)


async def test_what_comes_during_a_flush_goes_into_the_next_one(
    flusher: Flusher, make_partition: MakePartition, disk: SlowDisk
) -> None:
    partition = make_partition()
    disk.may_go_on.clear()
    first = append(partition, flusher)
    await asyncio.sleep(0.02)
    others = []
    for _ in range(10):
        others.append(append(partition, flusher))
        await asyncio.sleep(0.002)  # another turn of the loop
    assert not first.done.is_set()
    disk.may_go_on.set()
    await done(first, *others)
    assert sum(flusher.flush_seconds.counts) == 2


async def test_one_flush_of_many_partitions_lets_others_have_their_turn(
    flusher: Flusher, make_partition: MakePartition, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmlog_broker.replica.flusher.PARTITIONS_A_TURN", 4)
    partitions = [make_partition(number) for number in range(18)]
    flushed_at: list[int] = []

    def turn() -> None:
        flushed_at.append(sum(partition.log.high_watermark for partition in partitions))
        if flushed_at[-1] < len(partitions):
            asyncio.get_running_loop().call_soon(turn)

    turn()
    waiters = [append(partition, flusher) for partition in partitions]
    await done(*waiters)
    assert sum(flusher.flush_seconds.counts) == 1
    assert max(after - before for before, after in pairwise(flushed_at)) <= 8
    assert all(waiter.error is None for waiter in waiters)


async def test_what_comes_while_many_are_prepared_or_told_is_flushed_by_the_next(
    flusher: Flusher, make_partition: MakePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmlog_broker.replica.flusher.PARTITIONS_A_TURN", 2)
    partitions = [make_partition(number) for number in range(9)]
    waiters = [append(partition, flusher) for partition in partitions]
    for _ in range(50):
        waiters.append(append(partitions[len(waiters) % 9], flusher))
        await asyncio.sleep(0)
    await done(*waiters)
    assert all(waiter.error is None for waiter in waiters)


async def test_nothing_is_under_way_once_everything_is_flushed_and_everybody_was_told(
    flusher: Flusher, make_partition: MakePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmlog_broker.replica.flusher.PARTITIONS_A_TURN", 2)
    partitions = [make_partition(number) for number in range(9)]
    waiters = [append(partition, flusher, is_waited_for=False) for partition in partitions]
    await flusher.flush_all()
    assert all(waiter.done.is_set() for waiter in waiters)
    await flusher.flush_all()


async def test_a_partition_that_cannot_be_prepared_or_told_keeps_the_others_from_nothing(
    flusher: Flusher, make_partition: MakePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = [make_partition(number) for number in range(4)]
    waiters = [append(partition, flusher) for partition in partitions]
    monkeypatch.setattr(partitions[1], "prepare_flush", failing)
    monkeypatch.setattr(partitions[2], "wake", failing)
    await done(waiters[0], waiters[1], waiters[3])
    assert isinstance(waiters[1].error, StorageError)
    assert (waiters[0].error, waiters[3].error) == (None, None)
    assert partitions[2].log.high_watermark == 1
    await asyncio.wait_for(flusher.flush_all(), 25)


def failing() -> None:
    raise RuntimeError("of the test")


@pytest.mark.parametrize("is_late_one_first", [False, True])
async def test_what_nobody_waits_for_is_flushed_within_flush_ms(
    flusher: Flusher, make_partition: MakePartition, is_late_one_first: bool
) -> None:
    soon, late = make_partition(0, flush_ms="20"), make_partition(1, flush_ms="86400000")
    if is_late_one_first:
        append(late, flusher, is_waited_for=False)
    waiter = append(soon, flusher, is_waited_for=False)
    if not is_late_one_first:
        append(late, flusher, is_waited_for=False)
    await done(waiter)
    assert soon.log.high_watermark == 1
    assert late.log.high_watermark == 0
    await flusher.flush_all()
    assert late.log.high_watermark == 1


async def test_who_is_due_later_is_flushed_then_by_itself(flusher: Flusher, make_partition: MakePartition) -> None:
    soon, later = make_partition(0, flush_ms="5"), make_partition(1, flush_ms="150")
    waiters = [append(partition, flusher, is_waited_for=False) for partition in (later, soon)]
    await done(waiters[1])
    await done(waiters[0])


async def test_what_is_due_while_a_flush_runs_is_flushed_after_it(
    flusher: Flusher, make_partition: MakePartition, disk: SlowDisk
) -> None:
    busy, quiet = make_partition(0), make_partition(1, flush_ms="5")
    disk.may_go_on.clear()
    first = append(busy, flusher)
    await asyncio.sleep(0.01)
    second = append(quiet, flusher, is_waited_for=False)
    await asyncio.sleep(0.02)
    disk.may_go_on.set()
    await done(first, second)


def test_appends_that_are_due_at_once_are_flushed_on_either_loop(make_partition: MakePartition) -> None:
    """uvloop gives another kind of handle for what is due now."""

    async def scenario() -> None:
        flusher = Flusher(Path(), threads=1, syncfs_files=0, here=Anything(), on_flushed=lambda partitions: None)
        partitions = [make_partition(number, flush_ms=str(number)) for number in range(3)]
        waiters = [append(partition, flusher, is_waited_for=False) for _ in range(5) for partition in partitions]
        await done(*waiters)
        await flusher.flush_all()
        flusher.close()

    for loop_factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(scenario())


async def test_flush_messages_starts_a_flush(flusher: Flusher, make_partition: MakePartition) -> None:
    partition = make_partition(flush_messages="3", flush_ms="86400000")
    waiters = [append(partition, flusher, is_waited_for=False) for _ in range(3)]
    await done(*waiters)


async def test_a_flush_that_fails_fails_its_own_partitions_and_is_not_tried_again(
    flusher: Flusher, make_partition: MakePartition, disk: SlowDisk
) -> None:
    bad, good = make_partition(0), make_partition(1)
    disk.fails = True
    waiters = [append(bad, flusher), append(bad, flusher)]
    await done(*waiters)
    assert all(isinstance(waiter.error, StorageError) for waiter in waiters)
    assert bad.state is PartitionState.OFFLINE
    disk.fails = False
    syncs = disk.syncs
    await flusher.flush_all()
    assert disk.syncs == syncs
    waiter = append(good, flusher)
    await done(waiter)
    assert waiter.error is None


async def test_an_outcome_that_cannot_be_noted_concerns_its_partition_alone(
    flusher: Flusher, make_partition: MakePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = make_partition(0), make_partition(1)

    def refuse(plan: FlushPlan, error: Exception | None) -> bool:
        raise MemoryError

    monkeypatch.setattr(bad, "flushed", refuse)
    waiters = [append(bad, flusher), append(good, flusher)]
    await done(*waiters)
    assert isinstance(waiters[0].error, StorageError)
    assert (bad.state, waiters[1].error) == (PartitionState.OFFLINE, None)
    later = append(good, flusher)
    await done(later)
    assert later.error is None


async def test_a_flush_needs_no_thread_that_was_not_there_before(
    flusher: Flusher, make_partition: MakePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = [make_partition(number) for number in range(5)]

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    waiters = [append(partition, flusher) for partition in partitions]
    await done(*waiters)
    assert [waiter.error for waiter in waiters] == [None] * 5


async def test_a_partition_that_is_deleted_during_its_flush_disturbs_nobody(
    flusher: Flusher, make_partition: MakePartition, disk: SlowDisk
) -> None:
    remover, other = make_partition(0), make_partition(1)
    disk.may_go_on.clear()
    waiters = [append(remover, flusher), append(other, flusher)]
    await asyncio.sleep(0.02)
    remover.deleted()
    remover.delete_log()
    disk.may_go_on.set()
    await done(*waiters)
    assert waiters[1].error is None
    await until(lambda: other.log.high_watermark == 1)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_a_flush_that_finds_no_descriptor_is_made_later(
    flusher: Flusher, make_partition: MakePartition, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    first, second = make_partition(0), make_partition(1)
    prepare, refusals = first.prepare_flush, [number] * 3

    def refuse() -> FlushPlan | None:
        if refusals:
            raise OSError(refusals.pop(), "not now")
        return prepare()

    monkeypatch.setattr(first, "prepare_flush", refuse)
    waiters = [append(first, flusher), append(second, flusher)]
    await done(waiters[1])
    assert not waiters[0].done.is_set()
    await done(waiters[0])
    assert (waiters[0].error, first.state) == (None, PartitionState.ONLINE)


async def test_a_directory_that_cannot_be_opened_to_be_synced_is_synced_by_the_next_flush(
    flusher: Flusher, make_partition: MakePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = make_partition()
    real, synced, refusals = os.open, [], [errno.EMFILE, errno.ENFILE]

    def open_file(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECTORY:
            if refusals:
                raise OSError(refusals.pop(), "not now", path)
            synced.append(str(path))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", open_file)
    waiter = append(partition, flusher)
    await done(waiter)
    assert (waiter.error, partition.state) == (None, PartitionState.ONLINE)
    assert str(partition.log.local.directory) in synced


async def test_a_flush_that_a_read_only_disk_refuses_leaves_the_partition_to_be_read(
    flusher: Flusher, make_partition: MakePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = make_partition()
    await done(append(partition, flusher))

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        waiter = append(partition, flusher)
        await done(waiter)
    assert isinstance(waiter.error, StorageError)
    assert partition.state is PartitionState.READ_ONLY
    assert partition.log.high_watermark == 1
    with pytest.raises(StorageError, match="can be read, and takes no records"):
        append(partition, flusher)


async def test_a_log_whose_flush_cannot_be_prepared_goes_offline_and_what_that_brings_about_is_flushed(
    flusher: Flusher, make_partition: MakePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = make_partition(0), make_partition(1)
    waiters: list[Waiter] = []

    bad_flusher, prepare = bad.log.flusher, LogFlusher.prepare

    def refuse(log_flusher: LogFlusher) -> FlushPlan | None:
        if log_flusher is bad_flusher:
            raise OSError(errno.EIO, "broken")
        return prepare(log_flusher)

    def note(error: ApiError | None) -> None:
        assert isinstance(error, StorageError)
        waiters.append(append(good, flusher))

    monkeypatch.setattr(LogFlusher, "prepare", refuse)
    bad.disk = FlushedDisk(flusher, is_hasty=True)
    bad.append(batch_of([b"x"], timestamp_ms=NOW_MS), -1, note, now_ms=NOW_MS)
    await until(lambda: bool(waiters))
    await done(*waiters)
    assert (bad.state, good.log.high_watermark) == (PartitionState.OFFLINE, 1)


# Which partitions are due by flush.ms: as a plain list of times would say


PARTITIONS = [Partition(TopicPartition("t", number), None, LogConfig()) for number in range(6)]
steps = st.lists(
    st.tuples(st.sampled_from(("add", "discard", "take")), st.sampled_from(PARTITIONS), st.sampled_from((5, 20, 1000))),
    max_size=60,
)


@given(steps)
@settings(max_examples=200)
def test_it_does_as_a_plain_list_of_times_does(steps: list[tuple[str, Partition, int]]) -> None:
    due, model = DueFlushes(), dict[Partition, float]()
    for number, (step, partition, delay_ms) in enumerate(steps):
        now_s = number * 0.003
        if step == "add" and partition not in model:
            model[partition] = now_s + delay_ms / 1000
            assert due.add(partition, delay_ms, now_s) == model[partition]
        elif step == "discard":
            model.pop(partition, None)
            due.discard(partition)
        elif step == "take":
            expected = {each for each, due_s in model.items() if due_s <= now_s}
            taken = due.take(now_s)
            assert len(taken) == len(set(taken))
            assert set(taken) == expected
            model = {each: due_s for each, due_s in model.items() if each not in expected}
        assert due.next_s == min(model.values(), default=None)
        assert bool(due) == bool(model)
        assert all((each in due) == (each in model) for each in PARTITIONS)


def test_all_that_are_left_can_be_taken_at_once() -> None:
    due = DueFlushes()
    for number, partition in enumerate(PARTITIONS):
        due.add(partition, 1000 * number, 0.0)
    assert set(due.take_all()) == set(PARTITIONS)
    assert not due
    assert due.next_s is None
    due.add(PARTITIONS[0], 5, 1.0)
    assert due.take(2.0) == [PARTITIONS[0]]
