"""What a follower sends to its leaders: one request at a time with all that is new, and reports of flushes.

Fetches of replicas that are not in sync wait for their turn if what they bring has a bound.

All partitions that one broker leads share a connection. A fetch stays with the leader until it is answered; a request
without fetches only waits for answers. If the connection is lost, everything that it had is fetched again.
"""

import asyncio
import logging
import math
from collections.abc import Callable

from warmlog_broker.cluster.data_path.driver import Driver
from warmlog_broker.cluster.data_path.peers import Peers
from warmlog_broker.cluster.data_path.serving import RESPONSE_BYTES, Serving, answer_of, fetch_message
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.replication import events as ev
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, WarmlogError
from warmlog_protocol.wire.connection import ReceivedResponse
from warmlog_transport.connection import Connection

ECHO_MS = 200
RESPONSE_MS = 3_000
"""A leader that is silent for so long has stopped, or is cut off."""

MUCH_BYTES = 256 * 1024
"""While more than this is taken in, the response to the other fetches is on its way."""

_log = logging.getLogger(__name__)


class _Leader:
    """What this broker fetches from one other broker."""

    def __init__(self, node: int, peers: Peers, refill: "Refill") -> None:
        self._node = node
        self._peers = peers
        self._refill = refill
        self._loop = asyncio.get_running_loop()
        self._fetches: dict[Driver, ev.Fetch] = {}
        """To be sent."""
        self._reports: dict[Driver, ev.Report] = {}
        self._asked: dict[PartitionKey, tuple[Driver, ev.Fetch]] = {}
        """Sent, and not answered yet."""
        self._heard_ms = self._echo_ms = ev.NEVER
        """When the last response came, and when it was sent by the leader's time."""
        self._echoed_ms = ev.NEVER
        """When that was last echoed."""
        self._waiting = 0
        """Requests without a response yet."""
        self._is_sending = False

    def send(self, driver: Driver, message: ev.Fetch | ev.Report) -> None:
        if isinstance(message, ev.Fetch):
            self._fetches[driver] = message
        else:
            self._reports[driver] = message
        self._send_soon()

    def heard_ms(self, driver: Driver, fetch: ev.Fetch) -> int:
        """As `Messages.heard_ms`."""
        asked = self._asked.get(driver.key)
        return self._heard_ms if asked is not None and asked[1] is fetch else ev.NEVER

    @property
    def heard_all_ms(self) -> float:
        """When the leader last responded, if it has a fetch."""
        return self._heard_ms if self._asked else math.inf

    def _send_soon(self) -> None:
        """Send in the next turn of the event loop: all partitions that have something by then go together."""
        if not self._is_sending:
            self._is_sending = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_sending = False
        connection = self._peers.connection(self._node, on_change=self._connection_changed)
        if connection is None:
            return
        try:
            self._send_by(connection)
        except WarmlogError:
            self._lost()

    def _send_by(self, connection: Connection) -> None:
        reports, self._reports = self._reports, {}
        if reports:
            flushed = [
                m.ReplicaReport(*driver.key, report.broker_epoch, report.leader_epoch, report.flushed)
                for driver, report in reports.items()
            ]
            connection.request(m.ReplicaFlushedRequest(flushed), (), None)
        fetches = {driver: fetch for driver, fetch in self._fetches.items() if driver.replica.fetch is fetch}
        self._fetches.clear()
        if fetches or (self._asked and not self._waiting):
            self._asked |= {driver.key: (driver, fetch) for driver, fetch in fetches.items()}
            sent = [fetch_message(driver.key, fetch) for driver, fetch in fetches.items()]
            message = m.ReplicaFetchRequest(sent, *self._echo())
            self._waiting += 1
            connection.request(message, (), self._responded, timeout_ms=RESPONSE_MS)

    def _echo(self) -> tuple[list[m.ReplicaKey], int]:
        """Return which fetches are none any more, and the echo for all others; not too often, as it looks at each."""
        now_ms = int(self._loop.time() * 1000)
        if now_ms < self._echoed_ms + ECHO_MS:
            return [], ev.NEVER
        self._echoed_ms = now_ms
        ended = [key for key, (driver, fetch) in self._asked.items() if driver.replica.fetch is not fetch]
        for key in ended:
            del self._asked[key]
        return [m.ReplicaKey(*key) for key in ended], self._echo_ms

    def _connection_changed(self, is_open: bool) -> None:
        if is_open:
            self._send_soon()
        else:
            self._lost()

    def _lost(self) -> None:
        """The connection is lost, or there is none: what was asked for, or would have been, is asked for again."""
        self._heard_ms = self._echo_ms = ev.NEVER
        asked, self._asked = self._asked, {}
        fetches, self._fetches = self._fetches, {}
        self._reports.clear()
        for driver, fetch in (*asked.values(), *fetches.items()):
            if not driver.is_in_sync:
                self._refill.brought(0)
            driver.unanswered(fetch)

    def _responded(self, result: ReceivedResponse | WarmlogError) -> None:
        self._waiting -= 1
        if isinstance(result, WarmlogError):
            self._lost()
            return
        if isinstance(result.result, ApiError):
            _log.error("broker %d refuses a fetch: %s", self._node, result.result)
            self._lost()
            return
        assert isinstance(result.result, m.ReplicaFetchResponse)
        self._heard_ms, self._echo_ms = int(self._loop.time() * 1000), result.result.sent_ms
        position = 0
        answers: list[tuple[Driver, m.ReplicaAnswer, memoryview]] = []
        for sent in result.result.answers:
            batches = result.payload[position : position + sent.size_bytes]
            position += sent.size_bytes
            key = PartitionKey(sent.topic_id, sent.partition)
            driver, fetch = self._asked.get(key, (None, None))
            if driver is not None and fetch is not None and fetch.number == sent.number:
                del self._asked[key]
                answers.append((driver, sent, batches))
        if position > MUCH_BYTES and self._asked and not self._waiting:
            self._send()
            self._loop.call_soon(self._take_in, answers)
        else:
            self._take_in(answers)

    def _take_in(self, answers: list[tuple[Driver, m.ReplicaAnswer, memoryview]]) -> None:
        """Hand answers to their replicas, which append what came."""
        for driver, sent, batches in answers:
            if not driver.is_in_sync:
                self._refill.brought(sent.size_bytes)
            driver.answered(answer_of(sent), batches, sent.flush_below)
        if self._asked and not self._waiting:
            self._send_soon()


class Refill:
    """The fetches of replicas that are not in sync: each counts as RESPONSE_BYTES until its answer is there."""

    def __init__(self, rate: Callable[[], int]) -> None:
        self._rate = rate
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Driver, tuple[_Leader, ev.Fetch]] = {}
        self._free_s = 0.0
        """When the rate allows the next one."""
        self._timer: asyncio.TimerHandle | None = None

    def send(self, leader: _Leader, driver: Driver, fetch: ev.Fetch) -> None:
        """Send it when it is its turn; in place of an earlier one of the same replica."""
        self._waiting[driver] = leader, fetch
        self._go_on()

    def brought(self, size_bytes: int) -> None:
        if rate := self._rate():
            self._free_s -= (RESPONSE_BYTES - size_bytes) / rate
            self._go_on()

    def _go_on(self) -> None:
        rate, now_s = self._rate(), self._loop.time()
        while self._waiting and (not rate or self._free_s <= now_s):
            driver = next(iter(self._waiting))
            leader, fetch = self._waiting.pop(driver)
            leader.send(driver, fetch)
            if rate:
                self._free_s = max(self._free_s, now_s) + RESPONSE_BYTES / rate
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._free_s, self._go_on) if self._waiting else None


class Fetching:
    """The leaders that this broker follows."""

    def __init__(self, peers: Peers, refill_rate: Callable[[], int]) -> None:
        """`refill_rate`: the bytes per second that replicas may take in which are not in sync; 0: no bound."""
        self._peers = peers
        self._refill = Refill(refill_rate)
        self._leaders: dict[int, _Leader] = {}

    def send(self, to: int, driver: Driver, message: ev.Fetch | ev.Report) -> None:
        """As `Messages.send`."""
        leader = self._leaders.get(to)
        if leader is None:
            leader = self._leaders[to] = _Leader(to, self._peers, self._refill)
        if isinstance(message, ev.Report) or driver.is_in_sync:
            leader.send(driver, message)
        else:
            self._refill.send(leader, driver, message)

    def all_heard_ms(self) -> float:
        """As `Messages.all_heard_ms`, of those that have fetches of this broker."""
        return min((each.heard_all_ms for each in self._leaders.values()), default=math.inf)

    def heard_ms(self, leader: int, driver: Driver, fetch: ev.Fetch) -> int:
        """As `Messages.heard_ms`."""
        return self._leaders[leader].heard_ms(driver, fetch) if leader in self._leaders else ev.NEVER


class BetweenBrokers:
    """The messages between brokers, both ways: as `Messages`."""

    def __init__(self, fetching: Fetching, serving: Serving) -> None:
        self.send = fetching.send
        self.heard_ms = fetching.heard_ms
        self.is_due = serving.is_due
        self.echoed_ms = serving.echoed_ms
        self._ways = fetching, serving

    def all_heard_ms(self) -> float:
        """As `Messages`."""
        return min(each.all_heard_ms() for each in self._ways)
