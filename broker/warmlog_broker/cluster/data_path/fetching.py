"""What a follower sends to its leaders: one request at a time with all that is new, and reports of flushes.

All partitions that one broker leads share a connection. A fetch stays with the leader until it is answered; a request
without fetches only waits for answers. If the connection is lost, everything that it had is fetched again.
"""

import asyncio
import logging
from collections.abc import Callable

from warmlog_broker.cluster.data_path.driver import Driver
from warmlog_broker.cluster.data_path.peers import Peers
from warmlog_broker.cluster.data_path.serving import POLL_S, answer_of, fetch_message
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.replication import events as ev
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, WarmlogError
from warmlog_protocol.wire.connection import ReceivedResponse
from warmlog_transport.connection import Connection

RESPONSE_MS = int(POLL_S * 1000) + 2_000
"""A leader that is silent for so long has stopped, or is cut off."""

_log = logging.getLogger(__name__)


class _Leader:
    """What this broker fetches from one other broker."""

    def __init__(self, node: int, peers: Peers) -> None:
        self._node = node
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._fetches: dict[Driver, ev.Fetch] = {}
        """To be sent."""
        self._reports: dict[Driver, ev.Report] = {}
        self._asked: dict[PartitionKey, tuple[Driver, ev.Fetch]] = {}
        """Sent, and not answered yet."""
        self._waiting = 0
        """Requests without a response yet."""
        self._is_sending = False

    def send(self, driver: Driver, message: ev.Fetch | ev.Report) -> None:
        if isinstance(message, ev.Fetch):
            self._fetches[driver] = message
        else:
            self._reports[driver] = message
        self._send_soon()

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
            connection.request(_flushed_message(reports), (), None)
        fetches, self._fetches = self._fetches, {}
        if fetches or (self._asked and not self._waiting):
            self._asked |= {driver.key: (driver, fetch) for driver, fetch in fetches.items()}
            message = m.ReplicaFetchRequest([fetch_message(driver.key, fetch) for driver, fetch in fetches.items()])
            self._waiting += 1
            connection.request(message, (), self._responded, timeout_ms=RESPONSE_MS)

    def _connection_changed(self, is_open: bool) -> None:
        if is_open:
            self._send_soon()
        else:
            self._lost()

    def _lost(self) -> None:
        """The connection is lost, or there is none: what was asked for, or would have been, is asked for again."""
        asked, self._asked = self._asked, {}
        fetches, self._fetches = self._fetches, {}
        self._reports.clear()
        for driver, fetch in (*asked.values(), *fetches.items()):
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
        position = 0
        for sent in result.result.answers:
            batches = result.payload[position : position + sent.size_bytes]
            position += sent.size_bytes
            key = PartitionKey(sent.topic_id, sent.partition)
            driver, fetch = self._asked.get(key, (None, None))
            if driver is not None and fetch is not None and fetch.number == sent.number:
                del self._asked[key]
                driver.answered(answer_of(sent), batches, sent.flush_below)
        if self._asked and not self._waiting:
            self._send_soon()


class Fetching:
    """The leaders that this broker follows."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._leaders: dict[int, _Leader] = {}

    def send(self, to: int, driver: Driver, message: ev.Fetch | ev.Report) -> None:
        """As `Messages.send`."""
        leader = self._leaders.get(to)
        if leader is None:
            leader = self._leaders[to] = _Leader(to, self._peers)
        leader.send(driver, message)


class BetweenBrokers:
    """The messages between brokers, both ways: as `Messages`."""

    def __init__(self, fetching: Fetching, is_due: Callable[[int, Driver], None]) -> None:
        self.send = fetching.send
        self.is_due = is_due


def _flushed_message(reports: dict[Driver, ev.Report]) -> m.ReplicaFlushedRequest:
    return m.ReplicaFlushedRequest(
        [
            m.ReplicaReport(*driver.key, report.broker_epoch, report.leader_epoch, report.flushed)
            for driver, report in reports.items()
        ]
    )
