"""What a leader serves to the brokers that follow it.

A fetch is a session for as long as its connection: each request lists what is new, the partitions keep it (`Driver`),
and the response has the answers to what there is something to say to. So a follower of a thousand partitions that are
idle sends and gets little: two times, which count for all fetches that wait. One request waits at a time; another one
ends it.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from msgspec.structs import astuple, replace

from warmlog_broker.cluster.data_path.answers import Reply
from warmlog_broker.cluster.data_path.driver import Driver
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.network.request import Deferred, MessageWithSlices, Response
from warmlog_broker.replication import events as ev
from warmlog_broker.replication import leading
from warmlog_broker.replication.alignment import Diverging
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError

POLL_S = 0.25
"""A request waits so long for something to say."""
RESPONSE_BYTES = 2 << 20
"""Of one response, which may all be of one partition; and more if its first batch is larger."""

_VERDICTS = tuple(ev.Verdict)
_NUMBERS = {verdict: number for number, verdict in enumerate(_VERDICTS)}

_log = logging.getLogger(__name__)

Find = Callable[[PartitionKey], Driver | None]


class _Poll(Deferred):
    """The request that waits."""

    __slots__ = ("_session",)

    def __init__(self, session: "_Session", deadline_s: float) -> None:
        super().__init__(deadline_s)
        self._session = session

    def expire(self) -> None:
        self._session.respond()

    def drop(self) -> bool:
        self._session.poll = None
        return True


class _Session:
    """What one follower waits for, over one connection."""

    def __init__(self, node: int, connection: int, threads: Executor) -> None:
        self.node = node
        self.connection = connection
        self.due: dict[Driver, None] = {}
        """The partitions that have something to say."""
        self.asked: dict[Driver, int] = {}
        """The numbers of fetches that are not answered yet."""
        self.echo_ms = ev.NEVER
        self.refused: list[m.ReplicaAnswer] = []
        """Answers for partitions that are not served here yet."""
        self.poll: _Poll | None = None
        self._threads = threads
        self._is_responding = False

    def respond_soon(self) -> None:
        if self.poll is not None and not self._is_responding:
            self._is_responding = True
            asyncio.get_running_loop().call_soon(self.respond)

    def respond(self) -> None:
        """Respond to the request that waits, with what there is."""
        self._is_responding = False
        poll, self.poll = self.poll, None
        if poll is not None:
            poll.run(self.response)

    def response(self) -> Response:
        """Return the answers that fit into one response."""
        taken: list[tuple[Driver, Reply]] = []
        refused, self.refused = self.refused, []
        left_bytes = RESPONSE_BYTES
        while self.due and left_bytes > 0:
            driver = next(iter(self.due))
            del self.due[driver]
            reply = driver.take_answer(self.node, left_bytes)
            if reply is not None:
                if self.asked.get(driver) == reply.answer.number:
                    del self.asked[driver]
                taken.append((driver, reply))
                left_bytes -= reply.size_bytes
        try:
            are_cached = all(piece.is_cached() for _, reply in taken for piece in reply.slices)
        except OSError:
            are_cached = False
        return _message(taken, refused) if are_cached else self._read(taken, refused)

    async def _read(
        self, taken: Sequence[tuple[Driver, Reply]], refused: Sequence[m.ReplicaAnswer]
    ) -> MessageWithSlices:
        """Read the bytes into the page cache first: a follower that was away must not block the event loop.

        What cannot be read is refused, and asked for again.
        """
        replies: list[tuple[Driver, Reply]] = []
        for driver, reply in taken:
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, _read_through, reply.slices)
            except (OSError, MemoryError, ApiError) as error:
                replies.append((driver, Reply(replace(reply.answer, verdict=ev.Verdict.REFUSED))))
                if driver.replica.leading is not None:
                    driver.partition.unreadable(error, reply.slices)
            else:
                replies.append((driver, reply))
        return _message(replies, refused)


class Serving:
    """The fetches of all followers."""

    def __init__(self, find: Find, threads: Executor) -> None:
        """`threads` read what is not in the page cache."""
        self._find = find
        self._threads = threads
        self._sessions: dict[int, _Session] = {}

    def is_due(self, node: int, driver: Driver) -> None:
        """As `Messages.is_due`."""
        if (session := self._sessions.get(node)) is not None:
            session.due[driver] = None
            session.respond_soon()

    def echoed_ms(self, node: int, driver: Driver, number: int) -> int:
        """As `Messages.echoed_ms`."""
        session = self._sessions.get(node)
        return session.echo_ms if session is not None and session.asked.get(driver) == number else ev.NEVER

    def all_heard_ms(self) -> float:
        """As `Messages.all_heard_ms`, of those whose fetches wait."""
        return min((each.echo_ms for each in self._sessions.values() if each.asked), default=math.inf)

    def fetch(self, node: int, connection: int, request: m.ReplicaFetchRequest) -> Response:
        """Take in the fetches of broker `node`; respond at once if there is something to say."""
        session = self._sessions.get(node)
        if session is None or session.connection < connection:
            if session is not None:
                session.due.clear()  # a response by the earlier connection would take fetches of this one
                for asked in session.asked:
                    asked.is_resting = False
            session = self._sessions[node] = _Session(node, connection, self._threads)
        elif session.connection > connection:
            return m.ReplicaFetchResponse()  # what was on its way when the follower connected again
        session.respond()
        for ended in request.ended:
            if (driver := self._find(PartitionKey(*astuple(ended)))) is not None:
                session.asked.pop(driver, None)
                driver.is_resting = False
        session.echo_ms = max(session.echo_ms, request.echo_ms)
        for each in request.fetches:
            key, fetch = PartitionKey(each.topic_id, each.partition), fetch_of(node, each)
            if (driver := self._find(key)) is not None:
                session.asked[driver] = fetch.number
                driver.do(fetch)
            else:
                session.refused.append(answer_message(key, Reply(leading.refusal(fetch))))
        if session.due or session.refused:
            return session.response()
        session.poll = _Poll(session, asyncio.get_running_loop().time() + POLL_S)
        return session.poll

    def flushed(self, node: int, request: m.ReplicaFlushedRequest) -> None:
        """Take in the reports of broker `node`."""
        for each in request.reports:
            if (driver := self._find(PartitionKey(each.topic_id, each.partition))) is not None:
                driver.do(ev.Report(node, each.broker_epoch, each.leader_epoch, each.flushed))

    def end_all(self) -> None:
        """Respond to all that wait: the broker stops."""
        for session in self._sessions.values():
            session.respond()


def fetch_message(key: PartitionKey, fetch: ev.Fetch) -> m.ReplicaFetch:
    """Return a follower's fetch as it is sent: its fields but the node, in the same order."""
    return m.ReplicaFetch(*key, *astuple(fetch)[1:])


def fetch_of(node: int, sent: m.ReplicaFetch) -> ev.Fetch:
    return ev.Fetch(node, *astuple(sent)[2:])


def answer_message(key: PartitionKey, reply: Reply) -> m.ReplicaAnswer:
    """Return a leader's answer as it is sent: its fields in the same order, with what is sent along."""
    number, leader_epoch, offset, verdict, diverging, *others = astuple(reply.answer)
    values = [number, leader_epoch, offset, _NUMBERS[verdict], *diverging, *others, reply.flush_below, reply.size_bytes]
    return m.ReplicaAnswer(*key, *values)


def answer_of(sent: m.ReplicaAnswer) -> ev.Answer:
    """Return a leader's answer as it was sent. IndexError for a verdict that this version does not know."""
    number, leader_epoch, offset, verdict, epoch, end, *others = astuple(sent)[2:-2]
    return ev.Answer(number, leader_epoch, offset, _VERDICTS[verdict], Diverging(epoch, end), *others)


def _message(taken: Sequence[tuple[Driver, Reply]], refused: Sequence[m.ReplicaAnswer]) -> MessageWithSlices:
    answers = [answer_message(driver.key, reply) for driver, reply in taken]
    slices = [*(reply.slices for _, reply in taken), *([] for _ in refused)]
    now_ms = int(asyncio.get_running_loop().time() * 1000)
    return MessageWithSlices(m.ReplicaFetchResponse([*answers, *refused], now_ms), slices)


def _read_through(slices: Sequence[FileSlice]) -> None:
    for piece in slices:
        piece.read_through()
