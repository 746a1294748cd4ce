"""What a leader answers to the brokers that follow it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from unit.broker.cluster.room import KEY, MAX_BYTES, Room
from warmlog_broker.cluster.data_path.answers import Reply
from warmlog_broker.cluster.data_path.serving import Serving, answer_message, answer_of, fetch_message, fetch_of
from warmlog_broker.network.request import Deferred, DeferredOwner, MessageWithSlices, Response
from warmlog_broker.replication import events as ev
from warmlog_broker.replication.alignment import Diverging
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol import messages as m


def test_fetches_and_answers_are_received_as_they_were_sent() -> None:
    assert m.ReplicaFetch.__struct_fields__[2:] == ev.Fetch.__struct_fields__[1:]
    fetch = ev.Fetch(2, *range(10, 19))
    assert fetch_of(2, fetch_message(KEY, fetch)) == fetch
    answer = ev.Answer(1, 2, 3, ev.Verdict.DIVERGES, Diverging(4, 5), 6, 7, 8, 9)
    sent = answer_message(KEY, Reply(answer, 10))
    assert (sent.topic_id, sent.partition, sent.flush_below, sent.size_bytes) == (*KEY, 10, 0)
    assert (sent.diverging_epoch, sent.diverging_end) == (4, 5)
    assert (sent.high_watermark, sent.log_start, sent.sent_ms, sent.removed_below) == (6, 7, 8, 9)
    assert answer_of(sent) == answer


async def test_a_fetch_of_a_partition_that_is_not_served_yet_is_refused_and_not_kept() -> None:
    """A follower that hears of a new topic first would wait for long: the leader forgets what it cannot keep."""
    fetch = m.ReplicaFetch(bytes(16), 3, 7, 0, 41, 12, -1, 12, 0, -1, 0)
    with ThreadPoolExecutor(1) as threads:
        response = Serving(lambda _: None, threads).fetch(2, 1, m.ReplicaFetchRequest([fetch]))
    assert isinstance(response, MessageWithSlices)
    assert isinstance(response.message, m.ReplicaFetchResponse)
    (sent,) = response.message.answers
    answer = answer_of(sent)
    assert (sent.partition, answer.number, answer.offset, answer.verdict) == (3, 41, 12, ev.Verdict.REFUSED)
    assert list(response.slices) == [[]]


async def test_an_echo_counts_for_all_fetches_that_wait_but_those_that_are_none_any_more(room: Room) -> None:
    await room.create(1, 2, 3)
    leader, fetch = room.driver(1), await room.fetch_of(3)
    serving = Serving(lambda _: leader, room.threads)

    def ask(request: m.ReplicaFetchRequest, connection: int = 1) -> list[int]:
        poll = serving.fetch(3, connection, request)
        if isinstance(poll, Deferred):
            poll.drop()
        return [serving.echoed_ms(3, leader, number) for number in (fetch.number, fetch.number + 1)]

    never = ev.NEVER
    assert ask(m.ReplicaFetchRequest([fetch_message(KEY, fetch)])) == [never, never]
    assert ask(m.ReplicaFetchRequest([], [], 5)) == [5, never]
    assert ask(m.ReplicaFetchRequest([])) == [5, never]
    leader.is_resting = True
    assert ask(m.ReplicaFetchRequest([], [m.ReplicaKey(*KEY)], 6)) == [never, never]
    assert not leader.is_resting
    following = fetch_message(KEY, replace(fetch, number=fetch.number + 1))
    assert ask(m.ReplicaFetchRequest([following])) == [never, 6]
    leader.is_resting = True
    assert ask(m.ReplicaFetchRequest([], [], 7), connection=2) == [never, never], "another connection"
    assert not leader.is_resting


async def test_what_was_due_by_an_earlier_connection_takes_no_fetch_of_the_next_one(room: Room) -> None:
    """It would be answered where the follower does not read any more, and waited for until it is repeated."""
    await room.create(1, 2, 3)
    leader, fetch = room.driver(1), await room.fetch_of(3)
    room.cut.add(frozenset((1, 3)))
    serving = Serving(lambda _: leader, room.threads)
    poll = serving.fetch(3, 1, m.ReplicaFetchRequest([fetch_message(KEY, fetch)]))
    assert isinstance(poll, Deferred)
    responses: list[Response] = []
    poll.begin(cast("DeferredOwner", SimpleNamespace(end=lambda _, work: responses.append(work()))))
    serving.is_due(3, leader)
    following = replace(fetch, number=fetch.number + 1)
    serving.fetch(3, 2, m.ReplicaFetchRequest([fetch_message(KEY, following)]))
    await room.until(lambda: len(responses) == 1)
    reply = leader.take_answer(3, MAX_BYTES)
    assert reply is not None
    assert reply.answer.number == following.number


async def is_damage(room: Room, monkeypatch: pytest.MonkeyPatch, error: Exception, *, is_cut: bool) -> bool:
    """Have a follower fetch what a thread fails to read; return whether the leader takes that for damage."""
    await room.create(1, 2, 3)
    await room.produce(b"x")
    leader, fetch = room.driver(1), await room.fetch_of(3)
    room.cut.add(frozenset((1, 3)))
    produced = asyncio.create_task(room.produce(b"y", at=1))
    await room.until(lambda: room.end(1) == 2)

    def fail(_: FileSlice) -> None:
        raise error

    serving = Serving(lambda _: leader, room.threads)
    poll = serving.fetch(3, 1, m.ReplicaFetchRequest([]))
    assert isinstance(poll, Deferred)
    poll.drop()
    leader.do(fetch)
    serving.is_due(3, leader)
    with monkeypatch.context() as patched:
        patched.setattr(FileSlice, "is_cached", lambda _: False)
        patched.setattr(FileSlice, "read_through", fail)
        patched.setattr(FileSlice, "is_cut", is_cut)
        reading = serving.fetch(3, 1, m.ReplicaFetchRequest([]))
        assert asyncio.iscoroutine(reading)
        response = await reading
    assert isinstance(response, MessageWithSlices)
    assert isinstance(response.message, m.ReplicaFetchResponse)
    (sent,) = response.message.answers
    assert (sent.number, sent.size_bytes, answer_of(sent).verdict) == (fetch.number, 0, ev.Verdict.REFUSED)
    room.cut.clear()
    await asyncio.gather(produced, return_exceptions=True)
    return leader.replica.failed_in is not None


async def test_a_disk_that_cannot_be_read_is_damage(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await is_damage(room, monkeypatch, OSError("input/output error"), is_cut=False)


@pytest.mark.parametrize(("error", "is_cut"), [(MemoryError(), False), (OSError("truncated there"), True)])
async def test_a_fetch_that_finds_no_memory_or_a_cut_log_is_asked_again(
    room: Room, monkeypatch: pytest.MonkeyPatch, error: Exception, is_cut: bool
) -> None:
    assert not await is_damage(room, monkeypatch, error, is_cut=is_cut)
