"""The cluster as a client sees it: who leads which partition and coordinates which group, and a link to each broker.

Metadata is requested when something is unknown or a broker responded with NOT_LEADER…, and kept. A broker may be late:
of two leaders of a partition that of the later epoch counts (KIP-320). Coordinators are kept until one of them says
that it is none, or cannot be reached.
"""

import asyncio
import logging
import os
import random
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Self, TypeVar

from warmlog_protocol import errors
from warmlog_protocol import messages as m
from warmlog_protocol.wire.connection import ReceivedResponse
from warmlog_protocol.wire.frames import Allocate
from warmlog_transport.address import Address, parse_addresses
from warmlog_transport.connection import BrokerLink, Connection, cancel
from warmlog_transport.errors import BrokerUnavailable, ClientClosed, WrongEventLoop
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import Topic, TopicPartition, checked, partition_range, topic_error
from warmlog_transport.retries import FailureLog, Retries

_log = logging.getLogger("warmlog")

R = TypeVar("R", bound=m.Message)

REFRESH_PAUSE_S = 0.05
"""The pause between two refreshes in the background, about: a new topic or leader takes a moment to become known."""
ANY_BROKER_S = 3.0
"""How long one of several brokers may take for what each of them can tell; after that another one is asked."""
COORDINATOR_S = 6.0
"""The same for a coordinator, before brokers are asked again who that is, and for each of all brokers."""
MOST_COORDINATORS = 10_000
"""Of groups and transactional ids; with more, all are asked for again."""
NEAR_S, NOT_NEAR_S = 300.0, 10.0
"""How long a near replica is read from before the leader is asked again; only the leader, after one has failed."""
SILENT_S = 1.5
"""How long a leader may send nothing while requests wait, before brokers are asked whether another one leads by now."""
LOOK_S = 1.0
"""How often one of several brokers is looked at for that."""
ALONE_S = 10.0
"""How often a client that knows one broker asks it for others: once that is lost, no other one can be asked."""
_UNKNOWN = errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_COORDINATOR_IS_ELSEWHERE = (errors.NotCoordinator, errors.CoordinatorNotAvailable, BrokerUnavailable)


class HomeLoop:
    """The event loop that a client was started in. The client works in no other."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread_id = threading.get_ident()
        self._process_id = os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that the loop runs in."""
        return os.getpid() != self._process_id

    def check(self, instead: str = "asyncio.run_coroutine_threadsafe(…, loop)") -> None:
        """Raise WrongEventLoop unless called in that loop, or in its thread while no loop runs there.

        `instead` is the call for another thread, which the error names.
        """
        is_closed = self.loop.is_closed()
        try:
            is_here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_here = threading.get_ident() == self.thread_id and not is_closed
        if is_here:
            return
        if is_closed:
            raise WrongEventLoop(
                "the event loop that this client was started in is closed, and its connections with it: start, use and "
                "close a client within one asyncio.run(), and create another client for the next"
            )
        raise WrongEventLoop(
            f"this client was started in another event loop: call it there, from another thread with {instead}"
        )


def is_interruption(error: BaseException | None) -> bool:
    """Whether a block that `error` leaves is to end at once: Ctrl-C or a cancellation.

    sys.exit and the early end of a generator are not: the program leaves the block as it means to, and nothing of what
    it has sent may be lost.
    """
    return isinstance(error, (KeyboardInterrupt, asyncio.CancelledError))


def not_open(client: str, *, is_started: bool) -> ClientClosed:
    """Return the error about a call to a client, such as "Producer", before `start` or after `close`."""
    state = "closed" if is_started else f"not started: use `async with {client}(...)`, or await start() first"
    return ClientClosed(f"the {client.lower()} is {state}")


class Cluster:
    """Metadata, and links to the brokers. `on_change` is called when either changes."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        options: ConnectionOptions,
        on_change: Callable[[], None] = lambda: None,
        allocate: Allocate | None = None,
    ) -> None:
        """`allocate` provides the memory of large responses."""
        self.options = options
        self.home = HomeLoop()
        self._bootstrap = parse_addresses(bootstrap)
        self._on_change = on_change
        self._allocate = allocate
        self._links: dict[Address, BrokerLink] = {}
        self._brokers: dict[int, BrokerLink] = {}
        self._coordinators: dict[tuple[int, str] | None, BrokerLink] = {}
        """By kind and key; None: of everything."""
        self._knows_brokers = False
        """Whether metadata have come since a coordinator was last lost."""
        self._near: dict[TopicPartition, tuple[int, float]] = {}
        """The replica to read from, -1 for the leader, and until when."""
        self._topics: dict[str, Topic] = {}
        self._errors: dict[str, errors.ApiError] = {}
        self._stale: set[str] = set()
        self._led: set[BrokerLink] = set()
        """Of brokers that lead, or have led, a partition, or are read from."""
        self._look: asyncio.TimerHandle | None = None
        self._failures = FailureLog()
        self._refreshing: asyncio.Task[None] | None = None
        self._is_closed = False
        self._refresh_at_s = self.home.loop.time() + options.metadata_max_age_ms / 1000

    @property
    def addresses(self) -> list[Address]:
        """The brokers to ask: those that the user named, and those of the last metadata."""
        return list(dict.fromkeys((*self._bootstrap, *(link.address for link in self._brokers.values()))))

    @property
    def is_alone(self) -> bool:
        """Whether the last metadata had one broker."""
        return len(self._brokers) == 1

    def is_refresh_due(self) -> bool:
        """Whether to ask again for what may have changed unnoticed; True once in each `metadata_max_age_ms`."""
        now_s = self.home.loop.time()
        if now_s < self._refresh_at_s:
            return False
        self._refresh_at_s = now_s + self.options.metadata_max_age_ms / 1000
        return True

    async def start(self) -> None:
        """Connect to the first bootstrap address that responds; BrokerUnavailable, with each failure, if none does."""
        await self._any_connection()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection and end the background tasks."""
        self._is_closed = True
        if self._look is not None:
            self._look.cancel()
        await cancel(self._refreshing)
        for link in list(self._links.values()):
            await link.close()

    def throttled_s(self) -> float:
        """Return for how long brokers have delayed this client because of quotas, until now."""
        now_s = self.home.loop.time()
        return sum(link.throttle.elapsed_s(now_s) for link in list(self._links.values()))

    @asynccontextmanager
    async def timeout(self, limit_s: float) -> AsyncIterator[None]:
        """As asyncio.timeout, but `limit_s` begins again after each delay because of a quota."""
        loop = self.home.loop
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            due_s = limit_s + max((link.throttle.until_s for link in self._links.values()), default=0.0)
            if due_s <= loop.time():
                timeout.reschedule(due_s)
            else:
                timer = loop.call_at(due_s, look)

        timer = loop.call_later(limit_s, look)
        try:
            async with asyncio.timeout(None) as timeout:
                yield
        finally:
            timer.cancel()

    # --- what is known ----------------------------------------------------------------------------------------------

    def topic_error(self, name: str) -> errors.ApiError | None:
        """Why the last refresh brought no metadata of this topic, if so."""
        return self._errors.get(name)

    def leader(self, topic: str, partition: int) -> BrokerLink | None:
        """The link to the partition's leader; None if it is not known or there is none now."""
        known = self._partition(topic, partition)
        return None if known is None else self._brokers.get(known.leader_id)

    def source(self, topic: str, partition: int) -> BrokerLink | None:
        """The link to read from: to the near replica that the leader has named (KIP-392), or to the leader."""
        node_id, until_s = self._near.get((topic, partition), (-1, 0.0))
        near = self._brokers.get(node_id) if until_s > self.home.loop.time() else None
        return self.leader(topic, partition) if near is None or near.is_failing else near

    def read_near(self, topic: str, partition: int, node_id: int) -> None:
        """Read from this replica for a while, unless one has failed lately."""
        now_s, near = self.home.loop.time(), self._brokers.get(node_id)
        if near is not None and self._near.get((topic, partition), (-1, 0.0))[1] <= now_s:
            self._near[topic, partition] = node_id, now_s + NEAR_S
            self._led.add(near)

    def leave_near(self, topic: str, partition: int) -> bool:
        """Read from the leader again, as a fetch has failed; return False if that did not go to a near replica."""
        node_id, _ = self._near.get((topic, partition), (-1, 0.0))
        self._near[topic, partition] = -1, self.home.loop.time() + NOT_NEAR_S
        return node_id >= 0

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The epoch of `leader`, for its requests; -1 if it is not known."""
        known = self._partition(topic, partition)
        return m.NO_LEADER_EPOCH if known is None else known.leader_epoch

    def no_leader(self, topic: str, partition: int) -> errors.ApiError:
        """Why `leader` returned None.

        StorageError if the partition is offline, UnknownTopicOrPartition if the topic does not have it, else
        NotLeaderOrFollower.
        """
        known = self._topics.get(topic)
        parts = () if known is None else known.partitions
        if known is not None and not 0 <= partition < len(parts):
            return errors.UnknownTopicOrPartition(f"topic {topic!r} has {partition_range(len(parts))}, not {partition}")
        if parts and parts[partition].error_code == errors.ErrorCode.KAFKA_STORAGE_ERROR:
            return errors.StorageError(
                f"{topic}-{partition} is offline: its data directory has failed or is not mounted; see "
                "`warmlog log dirs` and the broker's log"
            )
        return errors.NotLeaderOrFollower(f"{topic}-{partition} has no leader now")

    def replicas(self, topic: str, partition: int) -> list[BrokerLink]:
        """The links to brokers that have the partition, as far as known. They may know why it is offline."""
        known = self._partition(topic, partition)
        replicas = () if known is None else known.replicas
        return [self._brokers[node_id] for node_id in replicas if node_id in self._brokers]

    def _partition(self, topic: str, partition: int) -> m.PartitionMetadata | None:
        known = self._topics.get(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        return known.partitions[partition]

    def want_leader(self, link: BrokerLink, topic: str) -> None:
        """Have the link to a leader connected. If that fails, ask other brokers who leads by now."""
        link.want()
        if link.is_failing and self._has_several:
            self.refresh_soon([topic])

    def refresh_soon(self, topics: Iterable[str]) -> None:
        """Request the brokers, and these topics' metadata, in the background; then `on_change` is called."""
        self._stale.update(topics)
        if self._refreshing is None and not self._is_closed:
            self._refreshing = asyncio.create_task(self._refresh(), name="warmlog metadata")

    # --- failures that are retried ------------------------------------------------------------------------------

    def failed(self, topic: str, partition: int, error: errors.WarmlogError) -> None:
        """Log a failure of this partition that is retried, unless it was logged before (see `FailureLog`)."""
        if self._failures.is_news((topic, partition), error, asyncio.get_running_loop().time()):
            _log.warning("%s; trying again", about(topic, partition, error))

    def worked(self, topic: str, partition: int) -> None:
        """Count the partition's next failure as a new one."""
        self._failures.worked((topic, partition))

    # --- requests ------------------------------------------------------------------------------------------

    async def learn(self, topics: Iterable[str]) -> None:
        """Request fresh metadata of these topics; `topic_error` has why one has none."""
        await self._ask_metadata(sorted(topics))

    async def topics(
        self, names: Sequence[str] | None, *, timeout_ms: int | None = None, internal: bool = False
    ) -> list[Topic]:
        """Return fresh metadata of the named topics, or of all; of internal ones, if named or with `internal`.

        Raises the error of the first topic that has one.
        """
        metadata = await self._ask_metadata(None if names is None else list(names), timeout_ms, internal=internal)
        for topic in metadata.topics:
            if topic.error_code:
                raise self._errors[topic.name]
        return [self._topics[topic.name] for topic in metadata.topics]

    async def topics_like(self, pattern: str, *, may_be_none: bool = False) -> list[Topic]:
        """Return the topics, without internal ones, whose whole name matches the regular expression, sorted by name.

        Raises UnknownTopicOrPartition if there is none, unless `may_be_none`.
        """
        topics = sorted(await self.topics(None), key=lambda topic: topic.name)
        fitting = [topic for topic in topics if re.fullmatch(pattern, topic.name)]
        if not fitting and not may_be_none:
            listed = ", ".join(topic.name for topic in topics) or "none"
            raise errors.UnknownTopicOrPartition(f"no topic matches the pattern {pattern!r}; there are {listed}")
        return fitting

    async def call(
        self,
        message: m.Message,
        expected: type[R],
        *,
        timeout_ms: int | None = None,
        is_repeatable: bool = True,
        final: tuple[type[errors.ApiError], ...] = (),
    ) -> R:
        """Return the response of any broker, or of the coordinator that the message is for (`m.COORDINATED`).

        Retries after lost connections and retriable errors. Unless `is_repeatable`, a request that may have arrived is
        not sent again. Raises the last error when `timeout_ms` (default: the request timeout) is over, and those of
        `final` at once. BrokerUnavailable, too, if the request may have arrived, and the client is refused before it
        hears of that.
        """
        response, _ = await self._ask(message, timeout_ms, None, is_repeatable, final)
        assert isinstance(response.result, expected)
        return response.result

    async def call_each(self, message: m.Message, expected: type[R]) -> list[R]:
        """Return the response of each broker that is there. Retries with all of them until the request timeout.

        One that hangs is there until the others have noticed.
        """
        retries = Retries(self.options, self.options.request_timeout_ms / 1000)
        failure: BrokerUnavailable | errors.ApiError
        while True:
            try:
                await self._ask_metadata([], _ms(retries.left_s))
                if self.is_alone:  # it may be reached at another address than the one that it advertises
                    return [await self.call(message, expected, timeout_ms=_ms(retries.left_s))]
                asked = [link.call(message, expected) for link in self._brokers.values()]
                async with asyncio.timeout(min(COORDINATOR_S, retries.left_s)):
                    return list(await asyncio.gather(*asked))
            except TimeoutError:
                failure = BrokerUnavailable(f"a broker of the cluster does not respond to {type(message).__name__}")
            except (BrokerUnavailable, errors.ApiError) as error:
                failure = error
            if (isinstance(failure, errors.ApiError) and not failure.retriable) or not await retries.pause():
                raise failure

    def forget_coordinator(self, message: m.Message) -> None:
        """Ask again who coordinates what `message` is about, as a part of its response was refused."""
        self._coordinators.pop(coordinator_key(message), None)
        self._coordinators.pop(None, None)
        self._knows_brokers = False

    async def any_broker(self) -> tuple[Address, m.HandshakeResponse]:
        """Return the address of a connected broker, and what it said of itself when the connection was opened."""
        connection = await self._any_connection()
        assert connection.broker is not None
        return connection.address, connection.broker

    async def ask_leader(self, message: m.Message, topic: str, partition: int) -> ReceivedResponse:
        """Return the response of the partition's leader with its payload; otherwise as `call`.

        A retry goes to the leader that is known by then: metadata is requested again meanwhile.
        """
        response, _ = await self._ask(message, None, (topic, partition), True)
        return response

    # --- within -----------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        message: m.Message,
        timeout_ms: int | None,
        partition: TopicPartition | None,
        is_repeatable: bool,
        final: tuple[type[errors.ApiError], ...] = (),
    ) -> tuple[ReceivedResponse, Address]:
        """The response of the leader of `partition`, or of whom `call` asks, and its address; otherwise as `call`."""
        request_s = self.options.request_timeout_ms / 1000
        coordinated = coordinator_key(message)
        retries = Retries(self.options, request_s if timeout_ms is None else timeout_ms / 1000)
        lost: BrokerUnavailable | None = None
        while True:
            is_sent = False
            try:
                limit_s = min(request_s, retries.left_s) if is_repeatable else retries.left_s
                if partition is not None:
                    if (link := self.leader(*partition)) is None:
                        raise self.no_leader(*partition)
                    connection = await link.connected()
                elif coordinated is not None:
                    connection = await self._coordinator(*coordinated, limit_s)
                    most_s = COORDINATOR_S
                else:
                    connection = await self._any_connection()
                    most_s = ANY_BROKER_S
                if partition is None and is_repeatable and self._has_several:
                    limit_s = min(limit_s, most_s)
                is_sent = True
                return await connection.ask(message, timeout_ms=_ms(limit_s)), connection.address
            except (BrokerUnavailable, errors.ApiError) as error:
                if is_sent and isinstance(error, BrokerUnavailable):
                    lost = error
                is_final = isinstance(error, errors.ApiError) and (not error.retriable or isinstance(error, final))
                if is_final and lost is not None and (not is_sent or isinstance(error, errors.AuthorizationFailed)):
                    raise BrokerUnavailable(f"{lost}; {error}") from error
                if partition is not None:
                    self.refresh_soon([partition[0]])
                if isinstance(error, _COORDINATOR_IS_ELSEWHERE):
                    self.forget_coordinator(message)
                if is_final or (is_sent and not is_repeatable) or not await retries.pause():
                    raise

    def _link(self, address: Address) -> BrokerLink:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = BrokerLink(address, self.options, self._on_change, self._allocate)
        return link

    @property
    def _has_several(self) -> bool:
        """Whether the last metadata had another broker to ask; several addresses may be those of one."""
        return len(self._brokers) > 1

    async def _coordinator(self, kind: m.CoordinatorKind, key: str, limit_s: float) -> Connection:
        """Return a connection to the coordinator of `key`. Asks any broker who that is, unless it is known."""
        link = self._coordinators.get(None) or self._coordinators.get((kind, key))
        if link is not None and link.connection is not None:
            return link.connection
        connection = await self._any_connection()
        timeout_s = min(limit_s, ANY_BROKER_S) if self._has_several else limit_s
        try:
            request = m.FindCoordinatorRequest(kind, [key])
            response = await connection.call(request, m.FindCoordinatorResponse, timeout_ms=_ms(timeout_s))
        except errors.UnsupportedVersion:  # a broker of 0.1, which is alone
            response = m.FindCoordinatorResponse([m.FoundCoordinator(0, "", key)], is_for_all=True)
        found = checked(response.coordinators[0])
        if not response.is_for_all and not self._knows_brokers:
            await self._ask_metadata([], _ms(timeout_s))  # whom to ask when the coordinator is gone
        is_here = response.is_for_all or not found.host  # whatever address the broker advertises
        link = self._link(connection.address if is_here else Address(found.host, found.port))
        if len(self._coordinators) >= MOST_COORDINATORS:
            self._coordinators.clear()
        self._coordinators[None if response.is_for_all else (kind, key)] = link
        if self._has_several:  # as the metadata may have said by now
            timeout_s = min(timeout_s, ANY_BROKER_S)
        try:
            async with asyncio.timeout(timeout_s):
                return await link.connected()
        except TimeoutError:
            raise BrokerUnavailable(f"no connection to broker {link.address} within {timeout_s:g} s") from None

    async def _any_connection(self) -> Connection:
        """Return a connection to the broker that was asked least recently and is not silent, or can be reached."""
        if self._is_closed:
            raise ClientClosed("the client is closed")
        for address, link in self._links.items():
            if link.connection is not None and not _is_silent(link):
                self._links[address] = self._links.pop(address)
                return link.connection
        failures: list[str] = []
        addresses = self.addresses
        if self._brokers:  # not every client begins with the same one, and none with what it has just lost
            random.shuffle(addresses)
            addresses.sort(key=lambda each: (_is_silent(self._link(each)), int(self._link(each).lost_at_s)))
        for address in addresses:
            try:
                return await self._link(address).connected()
            except BrokerUnavailable as error:
                failures.append(str(error))
        raise BrokerUnavailable("; ".join(failures))

    async def _ask_metadata(
        self, names: list[str] | None, timeout_ms: int | None = None, *, internal: bool = False
    ) -> m.MetadataResponse:
        asked = 0
        while True:
            response, dialled = await self._ask(m.MetadataRequest(names, internal), timeout_ms, None, True)
            metadata = response.result
            assert isinstance(metadata, m.MetadataResponse)
            addresses = {
                broker.node_id: Address(broker.host, broker.port) if broker.host else dialled
                for broker in metadata.brokers
            }
            self._brokers = {node_id: self._link(address) for node_id, address in addresses.items()}
            self._knows_brokers = True
            asked += 1
            is_unknown = any(topic.error_code == _UNKNOWN for topic in metadata.topics)
            if not is_unknown or asked >= len(self._brokers):
                break
            await asyncio.sleep(REFRESH_PAUSE_S)  # a broker may be late to hear of a topic
        if self._look is None and not self._is_closed:
            self._look_later()
        for topic in metadata.topics:
            if (error := topic_error(topic)) is not None:
                self._topics.pop(topic.name, None)
                self._errors[topic.name] = error
            else:
                self._errors.pop(topic.name, None)
                before = None if self.is_alone else self._topics.get(topic.name)  # its data may be of an earlier backup
                known = self._topics[topic.name] = Topic.of(topic).not_before(before)
                leaders = {part.leader_id for part in known.partitions}
                self._led.update(self._brokers[node_id] for node_id in leaders if node_id in self._brokers)
        return metadata

    def _look_later(self) -> None:
        self._look = self.home.loop.call_later(LOOK_S if self._has_several else ALONE_S, self._look_around)

    def _look_around(self) -> None:
        """Ask for metadata if a leader is silent, and leave one that leads nothing any more: it hangs, or is cut off.

        What waits for it is lost, and sent to the leaders that are known by then. A single broker is asked for others.
        """
        self._look_later()
        if not self._has_several:
            if any(link.connection is not None for link in self._links.values()):
                self.refresh_soon([])
            return
        for link in filter(_is_silent, self._led):
            led = [
                topic.name
                for topic in self._topics.values()
                if any(self._brokers.get(part.leader_id) is link for part in topic.partitions)
            ]
            if led:
                self.refresh_soon(led)
            elif link.connection is not None:
                link.connection.abandon(f"broker {link.address}, which leads nothing any more, does not respond")

    async def _refresh(self) -> None:
        try:
            while True:
                names, self._stale = sorted(self._stale), set()
                try:
                    await self._ask_metadata(names)
                except errors.WarmlogError:
                    self._stale.update(names)
                self._on_change()
                await asyncio.sleep(REFRESH_PAUSE_S * random.uniform(0.8, 1.2))  # noqa: S311
                if not self._stale:
                    break
        finally:
            self._refreshing = None


class Throttled:
    """A client that brokers may delay."""

    _throttling: Cluster | None = None
    """What its requests go over, once it is started."""

    @property
    def throttled_ms(self) -> int:
        """For how long brokers have delayed this client because of quotas."""
        return 0 if self._throttling is None else int(self._throttling.throttled_s() * 1000)


def coordinator_key(message: m.Message) -> tuple[m.CoordinatorKind, str] | None:
    """Return whose coordinator `message` goes to; None if any broker may respond."""
    kind, name = m.COORDINATED.get(type(message), (None, ""))
    key = getattr(message, name) if kind is not None else None
    if kind is None or not key:
        return None
    return kind, key if isinstance(key, str) else key[0]


def _ms(seconds: float) -> int:
    return max(int(seconds * 1000), 1)


def _is_silent(link: BrokerLink) -> bool:
    return link.silent_s >= SILENT_S


def about(topic: str, partition: int, error: errors.WarmlogError) -> str:
    """The error's message, which names the partition."""
    name, message = f"{topic}-{partition}", str(error) or type(error).__name__
    return message if name in message else f"{name}: {message}"
