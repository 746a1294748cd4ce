"""Looks up what the broker has of the topics to read, when a plan is made."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from warmlog.errors import (
    BrokerUnavailable,
    InvalidRequest,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
    UnsupportedVersion,
    error_from_code,
)
from warmlog.ranges.offset_range import OffsetRange, PartitionOffsets
from warmlog.sockets.cluster import BlockingCluster, in_requests
from warmlog.sockets.connection import R
from warmlog_protocol.errors import did_you_mean
from warmlog_protocol.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NO_LEADER_EPOCH,
    FindSplitsPartition,
    FindSplitsRequest,
    FindSplitsResponse,
    FoundSplit,
    FoundSplits,
    IsolationLevel,
    ListedOffset,
    Message,
    TopicMetadata,
)
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import TopicPartition

T = TypeVar("T")

SPLITS_TIMEOUT_MS = 60_000
"""The broker looks into an index for each segment of a range."""
LARGEST_TARGET_BYTES = 2**62
"""What the request's field can hold."""


class Discovery:
    """Requests to a cluster over shared connections, opened at first use. A context manager.

    Raises UnknownTopicOrPartition with the nearest name of a topic, BrokerUnavailable if no broker can be reached.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        options: ConnectionOptions | None = None,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> None:
        """`isolation` determines the latest offset."""
        self._bootstrap = bootstrap
        self._isolation = isolation
        self._cluster = BlockingCluster(bootstrap, options or ConnectionOptions(client_name="warmlog-spark"))

    def __enter__(self) -> "Discovery":
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def call(self, message: Message, expected: type[R]) -> R:
        """Return the response of any broker."""
        return self._ask(lambda: self._cluster.call(message, expected))

    def topics(self, names: Sequence[str], optional: Collection[str] = ()) -> dict[str, TopicMetadata]:
        """Return the metadata of these topics, in their order; those in `optional` need not exist."""
        try:
            found = self._ask(lambda: self._cluster.topics(names))
        except UnknownTopicOrPartition:
            found = self._ask(self._cluster.topics)
            if missing := [name for name in names if name not in found and name not in optional]:
                raise _unknown_topic(missing, sorted(found)) from None
        return {name: found[name] for name in names if name in found}

    def topics_like(self, pattern: str, *, may_be_none: bool = False) -> dict[str, TopicMetadata]:
        """Return the metadata of the topics whose whole name matches the regular expression, by name."""
        found = self._ask(self._cluster.topics)
        fitting = {name: found[name] for name in sorted(found) if re.fullmatch(pattern, name)}
        if not fitting and not may_be_none:
            listed = ", ".join(sorted(found)) or "none"
            raise UnknownTopicOrPartition(f"no topic matches the pattern {pattern!r}; there are {listed}")
        return fitting

    def states(
        self, topics: Mapping[str, TopicMetadata], includes: Callable[[TopicPartition], bool] = lambda _: True
    ) -> list[PartitionOffsets]:
        """Return the state of every partition of `topics` that `includes` accepts, by topic as given and by number."""
        partitions = [
            (name, each.partition)
            for name, topic in topics.items()
            for each in topic.partitions
            if includes((name, each.partition))
        ]
        earliest = self.offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
        ends = dict.fromkeys(partitions, LATEST_TIMESTAMP)
        latest = self._list(ends, self._isolation)
        is_committed_only = self._isolation is IsolationLevel.READ_COMMITTED
        high_watermarks = self._list(ends, IsolationLevel.READ_UNCOMMITTED) if is_committed_only else {}
        return [
            PartitionOffsets(
                topic=topic,
                partition=partition,
                topic_id=topics[topic].topic_id,
                leader=str(self._cluster.leader_address(topic, partition)),
                earliest=earliest[topic, partition],
                latest=latest[topic, partition].offset,
                high_watermark=high_watermarks[topic, partition].offset if is_committed_only else None,
                leader_epoch=latest[topic, partition].leader_epoch,
            )
            for topic, partition in partitions
        ]

    def offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the first offset at or after a time in milliseconds, for each partition; -1 if there is none."""
        return {partition: listed.offset for partition, listed in self._list(times, self._isolation).items()}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return where a leader epoch, or the newest known one below it, ends; -1 if it is unknown."""
        return self._ask(lambda: self._cluster.epoch_ends(epochs))

    def _list(
        self, times: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, ListedOffset]:
        return self._ask(lambda: self._cluster.list_offsets(dict(times), isolation=isolation)) if times else {}

    def splits(
        self, ranges: Sequence[OffsetRange], target_bytes: int, *, max_scan_ms: int = 0
    ) -> list[list[FoundSplit]]:
        """Return where each range can be split between batches, about every `target_bytes`; see FindSplits.

        Splits are further apart if one response cannot hold them all. `max_scan_ms` is for each request. Raises the
        error of the first range that has one. Brokers that do not know the request return no splits.
        """
        found: dict[OffsetRange, list[FoundSplit]] = {planned: [] for planned in ranges}
        by_leader: dict[str, list[OffsetRange]] = {}
        for planned in ranges:
            if planned.span:
                by_leader.setdefault(planned.leader, []).append(planned)
        for own in by_leader.values():
            try:
                for some in in_requests(own):
                    found.update(self._ask(partial(self._splits, some, target_bytes, max_scan_ms)))
            except UnsupportedVersion:
                continue
        return [found[planned] for planned in ranges]

    def _splits(
        self, ranges: list[OffsetRange], target_bytes: int, max_scan_ms: int
    ) -> dict[OffsetRange, list[FoundSplit]]:
        """The splits of ranges with one leader. If they exceed a response: each half of the ranges, half as finely."""
        wanted = [FindSplitsPartition(*each.tp, each.start, each.end, each.topic_id or None) for each in ranges]
        request = FindSplitsRequest(wanted, target_bytes, max_scan_ms)
        try:
            found = self._call_leader(ranges[0], request)
        except InvalidRequest:
            middle = len(ranges) // 2
            if middle == 0:  # the splits of one range always fit
                raise
            coarser_bytes = min(2 * target_bytes, LARGEST_TARGET_BYTES)
            halves = (self._splits(half, coarser_bytes, max_scan_ms) for half in (ranges[:middle], ranges[middle:]))
            return {planned: splits for half in halves for planned, splits in half.items()}
        for planned, each in zip(ranges, found, strict=True):
            if each.error_code:
                raise error_from_code(each.error_code, f"{planned}: {each.error_message}")
        return {planned: each.splits for planned, each in zip(ranges, found, strict=True)}

    def _call_leader(self, planned: OffsetRange, request: FindSplitsRequest) -> list[FoundSplits]:
        leader = self._cluster.leader(planned.topic, planned.partition)
        timeout_ms = request.max_scan_ms + SPLITS_TIMEOUT_MS
        return leader.call(request, FindSplitsResponse, timeout_ms=timeout_ms).partitions

    def _ask(self, request: Callable[[], T]) -> T:
        """What `request` returns. If a leader may have moved, the next request looks it up again."""
        try:
            return request()
        except NotLeaderOrFollower:
            self._cluster.forget_leaders()
            raise
        except BrokerUnavailable as error:
            self._cluster.forget_leaders()
            raise BrokerUnavailable(f"{error}; is the broker running at {', '.join(self._bootstrap)}?") from error


def find_cuts(
    discovery: Discovery,
    states: Sequence[PartitionOffsets],
    read_to: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return where logs were truncated below `read_to`, read under `epochs`; -1 if the broker cannot say.

    Asks about partitions that have another leader epoch now.
    """
    known = {state.tp: epochs.get(state.tp, NO_LEADER_EPOCH) for state in states if state.tp in read_to}
    now = {state.tp: state.leader_epoch for state in states}
    changed = {key: epoch for key, epoch in known.items() if epoch not in (NO_LEADER_EPOCH, now[key])}
    ends = discovery.epoch_ends(changed) if changed else {}
    return {key: end for key, end in ends.items() if end < read_to[key]}


def _unknown_topic(missing: Sequence[str], existing: Sequence[str]) -> UnknownTopicOrPartition:
    hint = did_you_mean(missing[0], existing) or "; create it, or name another topic"
    return UnknownTopicOrPartition(f"topic {', '.join(missing)} does not exist{hint}")
