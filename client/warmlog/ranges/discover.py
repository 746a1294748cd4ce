"""Looks up what the broker has of the topics to read, when a plan is made."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from warmlog.errors import ApiError, BrokerUnavailable, InvalidRequest, UnknownTopicOrPartition, UnsupportedVersion
from warmlog.ranges.offset_range import OffsetRange, PartitionOffsets
from warmlog_protocol import messages as m
from warmlog_protocol.errors import did_you_mean
from warmlog_transport.cluster import Cluster
from warmlog_transport.connection import BrokerLink
from warmlog_transport.leader_requests import ask_leaders
from warmlog_transport.list_offsets import OffsetAt, epoch_ends, list_offsets
from warmlog_transport.loop_thread import LoopThread
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import Topic, TopicPartition

T = TypeVar("T")
R = TypeVar("R", bound=m.Message)

SPLITS_TIMEOUT_MS = 60_000
"""The broker looks into an index for each segment of a range."""
LARGEST_TARGET_BYTES = 2**62
"""What the request's field can hold."""


class Discovery:
    """Requests to a cluster from any thread, over connections of its own. A context manager.

    Raises BrokerUnavailable at once if no broker can be reached. What may pass while a broker responds is retried for
    the request timeout.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        options: ConnectionOptions | None = None,
        *,
        isolation: m.IsolationLevel = m.IsolationLevel.READ_UNCOMMITTED,
    ) -> None:
        """`isolation` determines the latest offset."""
        options = options or ConnectionOptions(client_name="warmlog-spark")
        self._bootstrap = bootstrap
        self._isolation = isolation
        with ExitStack() as stack:
            self._thread = stack.enter_context(LoopThread("warmlog discovery"))
            self._cluster = stack.enter_context(self._thread.entered(lambda: Cluster(bootstrap, options)))
            self._opened = stack.pop_all()

    def __enter__(self) -> "Discovery":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._opened.close()

    def call(self, message: m.Message, expected: type[R]) -> R:
        """Return the response of any broker."""
        return self._ask(lambda cluster: cluster.call(message, expected))

    def topics(self, names: Sequence[str], optional: Collection[str] = ()) -> dict[str, Topic]:
        """Return these topics, in their order; those in `optional` need not exist.

        Raises UnknownTopicOrPartition with the nearest name of a topic.
        """
        try:
            found = self._ask(lambda cluster: cluster.topics(names))
        except UnknownTopicOrPartition:
            found = self._ask(lambda cluster: cluster.topics(None))
            existing = {topic.name for topic in found}
            if missing := [name for name in names if name not in existing and name not in optional]:
                hint = did_you_mean(missing[0], sorted(existing)) or "; create it, or name another topic"
                raise UnknownTopicOrPartition(f"topic {', '.join(missing)} does not exist{hint}") from None
        by_name = {topic.name: topic for topic in found}
        return {name: by_name[name] for name in names if name in by_name}

    def topics_like(self, pattern: str, *, may_be_none: bool = False) -> dict[str, Topic]:
        """Return the topics whose whole name matches the regular expression, by name."""
        topics = self._ask(lambda cluster: cluster.topics_like(pattern, may_be_none=may_be_none))
        return {topic.name: topic for topic in topics}

    def states(
        self, topics: Mapping[str, Topic], includes: Callable[[TopicPartition], bool] = lambda _: True
    ) -> list[PartitionOffsets]:
        """Return the state of every partition of `topics` that `includes` accepts, by topic as given and by number."""
        partitions = [
            (name, each.partition)
            for name, topic in topics.items()
            for each in topic.partitions
            if includes((name, each.partition))
        ]
        earliest = self._list(dict.fromkeys(partitions, m.EARLIEST_TIMESTAMP), self._isolation)
        ends = dict.fromkeys(partitions, m.LATEST_TIMESTAMP)
        latest = self._list(ends, self._isolation)
        is_committed_only = self._isolation is m.IsolationLevel.READ_COMMITTED
        high_watermarks = self._list(ends, m.IsolationLevel.READ_UNCOMMITTED) if is_committed_only else {}
        return [
            PartitionOffsets(
                topic=topic,
                partition=partition,
                topic_id=topics[topic].topic_id.bytes,
                leader="" if (link := self._cluster.leader(topic, partition)) is None else str(link.address),
                earliest=earliest[topic, partition].offset,
                latest=latest[topic, partition].offset,
                high_watermark=high_watermarks[topic, partition].offset if is_committed_only else None,
                leader_epoch=latest[topic, partition].leader_epoch,
                replicas=tuple(str(link.address) for link in self._cluster.replicas(topic, partition)),
            )
            for topic, partition in partitions
        ]

    def offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the first offset at or after a time in milliseconds, for each partition; -1 if there is none."""
        found = self._list(times, self._isolation)
        return {partition: at.offset if at.timestamp_ms >= 0 else -1 for partition, at in found.items()}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return where a leader epoch, or the newest known one below it, ends; -1 if it is unknown.

        Raises the error of the first partition that has one.
        """
        found = self._ask(lambda cluster: epoch_ends(cluster, epochs))
        return {tp: _result(tp, end).end_offset for tp, end in found.items()}

    def splits(
        self, ranges: Sequence[OffsetRange], target_bytes: int, *, max_scan_ms: int = 0
    ) -> list[list[m.FoundSplit]]:
        """Return where each range can be split between batches, about every `target_bytes`; see FindSplits.

        There is one range for each partition. Splits are further apart if one response cannot hold them all.
        `max_scan_ms` is for each request. Raises the error of the first range that has one. Brokers that do not know
        the request return no splits.
        """
        asked = {planned.tp: planned for planned in ranges if planned.span}

        async def look_up(cluster: Cluster) -> dict[TopicPartition, m.FoundSplits | ApiError]:
            async def ask(partitions: list[TopicPartition], link: BrokerLink) -> list[m.FoundSplits]:
                own = [asked[tp] for tp in partitions]
                try:
                    return await _splits(link, own, target_bytes, max_scan_ms)
                except UnsupportedVersion:
                    return [m.FoundSplits(*tp, 0, "", []) for tp in partitions]

            return await ask_leaders(cluster, asked, ask)

        found = self._ask(look_up) if asked else {}
        return [_result(planned, found[planned.tp]).splits if planned.span else [] for planned in ranges]

    def _list(self, times: Mapping[TopicPartition, int], isolation: m.IsolationLevel) -> dict[TopicPartition, OffsetAt]:
        return self._ask(lambda cluster: list_offsets(cluster, times, isolation=isolation)) if times else {}

    def _ask(self, question: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        async def ask() -> T:
            await self._cluster.start()
            return await question(self._cluster)

        try:
            return self._thread.call(ask)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(f"{error}; is the broker running at {', '.join(self._bootstrap)}?") from error


async def _splits(
    link: BrokerLink, ranges: list[OffsetRange], target_bytes: int, max_scan_ms: int
) -> list[m.FoundSplits]:
    """Return the splits of ranges with one leader. If they exceed a response: of each half of them, half as finely."""
    wanted = [m.FindSplitsPartition(*each.tp, each.start, each.end, each.topic_id or None) for each in ranges]
    request = m.FindSplitsRequest(wanted, target_bytes, max_scan_ms)
    timeout_ms = max_scan_ms + SPLITS_TIMEOUT_MS
    try:
        connection = await link.connected()
        return (await connection.call(request, m.FindSplitsResponse, timeout_ms=timeout_ms)).partitions
    except InvalidRequest:
        middle = len(ranges) // 2
        if middle == 0:  # the splits of one range always fit
            raise
    coarser_bytes = min(2 * target_bytes, LARGEST_TARGET_BYTES)
    halves = [await _splits(link, half, coarser_bytes, max_scan_ms) for half in (ranges[:middle], ranges[middle:])]
    return [*halves[0], *halves[1]]


def _result(about: object, result: T | ApiError) -> T:
    """Return the result, or raise the error in its place."""
    if isinstance(result, ApiError):
        name = "-".join(map(str, about)) if type(about) is tuple else about
        raise type(result)(f"{name}: {result}")
    return result


def find_cuts(
    discovery: Discovery,
    states: Sequence[PartitionOffsets],
    read_to: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return where logs were truncated below `read_to`, read under `epochs`; -1 if the broker cannot say.

    Asks about partitions that have another leader epoch now.
    """
    known = {state.tp: epochs.get(state.tp, m.NO_LEADER_EPOCH) for state in states if state.tp in read_to}
    now = {state.tp: state.leader_epoch for state in states}
    changed = {key: epoch for key, epoch in known.items() if epoch not in (m.NO_LEADER_EPOCH, now[key])}
    ends = discovery.epoch_ends(changed) if changed else {}
    return {key: end for key, end in ends.items() if end < read_to[key]}
