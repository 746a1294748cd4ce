"""The connection of one task, and who leads the partitions that it reads.

A plan says who led each partition when it was made. That may change while a task reads: after a failure the brokers
are asked again, those that the user named and the one that was the leader.
"""

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from warmlog.arrow.columns import arrow_memory
from warmlog.blocking.cluster import BlockingCluster
from warmlog.blocking.connection import BlockingConnection
from warmlog.cluster.address import parse_address
from warmlog.cluster.options import ConnectionOptions
from warmlog.errors import ApiError, BrokerUnavailable
from warmlog.ranges.offset_range import OffsetRange, TopicPartition

_log = logging.getLogger("warmlog.ranges")


class TaskLink:
    """Kept from range to range while they have the same leader and nothing is under way."""

    def __init__(self, options: ConnectionOptions, bootstrap: Sequence[str] = ()) -> None:
        """`bootstrap` are brokers that know the leaders."""
        self._options = options
        self._bootstrap = bootstrap
        self._moved: dict[TopicPartition, str] = {}
        self._connected_to = ""
        self._connection: BlockingConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()

    def leader(self, planned: OffsetRange) -> str:
        """HOST:PORT of the leader of this range, as far as is known."""
        return self._moved.get(planned.place, planned.leader)

    def to(self, planned: OffsetRange) -> BlockingConnection:
        """An open connection to the leader, new unless the last one can be used."""
        leader = self.leader(planned)
        if self._connection is None or not self._connection.is_open or self._connected_to != leader:
            self.drop()
            self._connection = BlockingConnection(*parse_address(leader), self._options, allocate=arrow_memory)
            self._connected_to = leader
        return self._connection

    def drop(self) -> None:
        """Close the connection, and with it all that is under way."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def find_leader(self, planned: OffsetRange) -> None:
        """Ask who leads the partition now. Who led it last stays the leader where nobody can tell."""
        known = self.leader(planned)
        brokers = list(dict.fromkeys((*self._bootstrap, known)))
        try:
            with BlockingCluster(brokers, self._options) as cluster:
                found = str(cluster.leader_address(*planned.place))
        except (BrokerUnavailable, ApiError) as error:
            _log.debug("%s-%d: no broker tells the leader: %s", *planned.place, error)
            return
        if found != known:
            _log.info("%s-%d is led by broker %s now, and no longer by %s", *planned.place, found, known)
            self._moved[planned.place] = found
