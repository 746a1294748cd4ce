"""The consumer group of a load() or stream: what it has committed, and commits from outside of it.

Spark does not join the group: its checkpoint decides what a stream reads. Its commits are for tools that show lag, and
for readers that start there. The broker takes them only while the group has no members.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from warmlog.consumer.group.membership import Owned, messages_of
from warmlog.errors import (
    GroupIdNotFound,
    InconsistentTopicId,
    NonEmptyGroup,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from warmlog.points import EARLIEST, Point, PointKind
from warmlog.ranges.discover import Discovery
from warmlog.ranges.offset_range import PartitionOffsets
from warmlog.ranges.resolve import ReadBounds
from warmlog.spark.options.read_options import GroupUse
from warmlog_protocol import messages as m
from warmlog_transport.responses import TopicPartition, checked, occupied

_NOT_IN_THE_LOG = (OffsetOutOfRange, UnknownTopicId, InconsistentTopicId, UnknownTopicOrPartition)
"""A topic was deleted, or a log was cut, after it had been read: the stream itself decides what to do about that."""

_log = logging.getLogger("warmlog.spark")


def started_where_committed(
    bounds: ReadBounds, group: GroupUse | None, discovery: Discovery, states: Sequence[PartitionOffsets]
) -> ReadBounds:
    """Return `bounds` with the group's committed offsets as the start, if the options say so.

    A partition begins at the earliest record if nothing is committed for it, under the id that its topic has now. Waits
    for the end of a transaction that commits an offset of one.
    """
    if group is None or not group.is_start:
        return bounds
    wanted = messages_of(Owned(state.topic_id, *state.tp) for state in states)
    request = m.OffsetFetchRequest(group.name, wanted, needs_stable=True)
    fetched = discovery.call(request, m.OffsetFetchResponse).partitions
    committed = {(each.topic_id, each.partition): each.offset for each in fetched if each.offset >= 0}
    starting: dict[TopicPartition, Point] = {}
    for state in states:
        offset = committed.get((state.topic_id, state.partition))
        starting[state.tp] = EARLIEST if offset is None else Point(PointKind.OFFSET, offset)
        if offset is None:
            _log.info("group %r has committed nothing for %s-%d: it is read from the start", group.name, *state.tp)
    return replace(bounds, starting=starting)


def check_no_members(discovery: Discovery, group: str) -> None:
    """Raise NonEmptyGroup, which names them, if the group has members."""
    (described,) = discovery.call(m.DescribeGroupsRequest([group]), m.DescribeGroupsResponse).groups
    if described.members:
        error = occupied(group, described.members)
        raise NonEmptyGroup(f"{error}; or leave out the option commitOffsets, or name another group")
    if described.error_code != GroupIdNotFound.code:
        checked(described)


def commit_offsets(
    discovery: Discovery, group: str, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes]
) -> None:
    """Commit from outside of the group, durably on return. Warns of offsets that the log does not have.

    A topic without an id in `topic_ids` is the one that has the name now.
    """
    wanted = [
        m.OffsetCommitPartition(topic_ids.get(topic, b""), topic, partition, offset)
        for (topic, partition), offset in sorted(offsets.items())
    ]
    try:
        response = discovery.call(m.OffsetCommitRequest(group, wanted), m.OffsetCommitResponse)
        for each in response.partitions:
            try:
                checked(each)
            except _NOT_IN_THE_LOG as error:
                _log.warning("%s-%d was not committed for group %r: %s", each.topic, each.partition, group, error)
    except NonEmptyGroup:
        check_no_members(discovery, group)
        raise
