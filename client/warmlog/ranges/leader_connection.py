"""The connection of one task to the leader of what it reads.

A plan names the leader of each partition at that time. After a failure the brokers are asked again: those that the user
named and the last known leader.
"""

import logging
import time
from collections.abc import Sequence
from typing import Self

from warmlog.arrow.columns import arrow_memory
from warmlog.errors import ApiError, BrokerUnavailable
from warmlog.ranges.offset_range import OffsetRange
from warmlog.sockets.cluster import BlockingCluster
from warmlog.sockets.connection import BlockingConnection
from warmlog_transport.address import parse_address
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import Throttle, TopicPartition

_log = logging.getLogger("warmlog.ranges")


class LeaderConnection:
    """One connection, kept from range to range while they have the same leader and nothing is in flight."""

    def __init__(self, options: ConnectionOptions, bootstrap: Sequence[str] = ()) -> None:
        """`bootstrap`: brokers to ask for the leader."""
        self._options = options
        self._bootstrap = bootstrap
        self._moved: dict[TopicPartition, str] = {}
        self._connected_to = ""
        self._connection: BlockingConnection | None = None
        self._throttle = Throttle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()
        if throttled_s := self._throttle.elapsed_s(time.monotonic()):
            _log.info("brokers have delayed reading by %.1f s because of quotas", throttled_s)

    def address(self, planned: OffsetRange) -> str:
        """HOST:PORT of the last known leader of this range."""
        return self._moved.get(planned.tp, planned.leader)

    def connected(self, planned: OffsetRange) -> BlockingConnection:
        """Return an open connection to the leader, a new one unless the last one can be used."""
        leader = self.address(planned)
        if self._connection is None or not self._connection.is_open or self._connected_to != leader:
            self.drop()
            self._connection = BlockingConnection(
                *parse_address(leader), self._options, allocate=arrow_memory, throttle=self._throttle
            )
            self._connected_to = leader
        return self._connection

    def drop(self) -> None:
        """Close the connection, with everything in flight."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def find(self, planned: OffsetRange) -> None:
        """Ask which broker leads the partition now; without a response the last known leader stays."""
        known = self.address(planned)
        brokers = list(dict.fromkeys((*self._bootstrap, known)))
        try:
            with BlockingCluster(brokers, self._options) as cluster:
                found = str(cluster.leader_address(*planned.tp))
        except (BrokerUnavailable, ApiError) as error:
            _log.debug("%s-%d: no broker names the leader: %s", *planned.tp, error)
            return
        if found != known:
            _log.info("%s-%d is now led by broker %s instead of %s", *planned.tp, found, known)
            self._moved[planned.tp] = found
