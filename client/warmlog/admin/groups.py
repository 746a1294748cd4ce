"""The part of the admin client that manages consumer groups: members, committed offsets, lag, resets."""

import asyncio
from collections.abc import Collection, Sequence
from typing import TypeVar

from warmlog.admin.arguments import checked_texts
from warmlog.admin.connected import Connected
from warmlog.admin.group_descriptions import (
    CommittedOffset,
    GroupDescription,
    GroupLag,
    committed_of_topics,
    group_description,
    measure_lags,
)
from warmlog.admin.group_reset import OffsetReset, listed_partitions, parse_targets, plan_resets
from warmlog.errors import GroupIdNotFound, NonEmptyGroup, UnknownTopicOrPartition, error_from_code
from warmlog.points import Shift, Target, Where
from warmlog.texts import checked_text
from warmlog_protocol import messages as m
from warmlog_transport.responses import Topic, TopicPartition, checked, occupied, partition_range, unknown_topic
from warmlog_transport.retries import Retries

R = TypeVar("R", m.DescribeGroupsResponse, m.DeleteGroupsResponse)

_GROUP = "the group's name"
_GROUPS_AT_ONCE = 32
"""Requests in flight when many groups are asked about."""


class GroupAdmin(Connected):
    """Manages consumer groups."""

    async def list_groups(self) -> list[m.GroupListing]:
        """All groups, sorted by name."""
        responses = await self.cluster.call_each(m.ListGroupsRequest(), m.ListGroupsResponse)
        return sorted((group for each in responses for group in each.groups), key=lambda group: group.name)

    async def describe_group(self, name: str) -> GroupDescription:
        """One group and its members. Raises GroupIdNotFound if it does not exist."""
        return group_description(checked(await self._described(checked_text(name, _GROUP))))

    async def committed_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """The offsets that a group has committed, by topic and partition; none if the group does not exist.

        Those of topics that were deleted since, or recreated under the same name, are left out: they are not used.
        """
        checked_text(group, _GROUP)
        return (await self._committed([group], await self.cluster.topics(None)))[group]

    async def group_lags(
        self, names: Sequence[str] | None = None, *, with_age: bool = True
    ) -> dict[str, dict[TopicPartition, GroupLag]]:
        """How far these groups, or all, are behind in each partition for which they have a committed offset.

        The first record that is left is fetched: offsets from there to the high watermark count, and seconds are its
        age. Without `with_age` nothing is fetched, all offsets that are left count, and seconds are None. A partition
        that is offline has an error in place of its figures.
        """
        groups = [each.name for each in await self.list_groups()] if names is None else checked_texts(names, "names")
        committed = await self._committed(groups, await self.cluster.topics(None))
        offsets = [offset for group in groups for offset in committed[group].values()]
        lags = iter(await measure_lags(self.cluster, offsets, with_age=with_age))
        return {group: {tp: next(lags) for tp in committed[group]} for group in groups}

    async def reset_offsets(
        self,
        group: str,
        where: Where | Shift,
        partitions: Collection[TopicPartition | str] | None = None,
        *,
        dry_run: bool = True,
    ) -> dict[TopicPartition, OffsetReset]:
        """Return where a reset moves a group; unless `dry_run` the offsets are committed, durably on return.

        `where` is an end ("earliest", "latest"), an offset, a time (a datetime, or text such as "-10m" or ISO 8601), a
        shift of the committed offsets (the text "+100" or "-100"), or a mapping from partitions to these. What is
        outside of the log becomes its nearest end. `partitions` are ("orders", 0) or "orders-0"; the default are those
        of the mapping, or all of the topics for which the group has committed offsets. A group that does not exist is
        created, if partitions are named.

        Raises NonEmptyGroup, which names them, while the group has members; GroupIdNotFound if there is nothing to
        reset; UnknownTopicOrPartition, ValueError and TypeError.
        """
        targets = parse_targets(where)
        listed = None if partitions is None else listed_partitions(partitions)
        await self._check_empty(checked_text(group, _GROUP))
        topics = {topic.name: topic for topic in await self.cluster.topics(None)}
        committed = (await self._committed([group], topics.values()))[group]
        chosen = _chosen(targets, listed, {name: topics[name] for name, _ in committed})
        if not chosen:
            raise GroupIdNotFound(f"group {group!r} has no committed offsets: name the partitions to reset")
        for name, number in chosen:
            if name not in topics:
                raise unknown_topic(name)
            count = len(topics[name].partitions)
            if number >= count:
                raise UnknownTopicOrPartition(f"topic {name!r} has {partition_range(count)}, not {number}")
        resets = await plan_resets(self.cluster, chosen, committed)
        if not dry_run:
            await self._commit(group, list(resets.values()), topics)
        return resets

    async def delete_groups(self, names: Sequence[str]) -> None:
        """Delete groups without members, and their committed offsets. Durable on return.

        Nothing is deleted if one of them has members (NonEmptyGroup, which names them) or does not exist
        (GroupIdNotFound).
        """
        groups = list(dict.fromkeys(checked_texts(names, "names")))
        for name in groups:
            checked(await self._check_empty(name))
        for name in groups:
            (deleted,) = (await self._of_group(m.DeleteGroupsRequest([name]), m.DeleteGroupsResponse)).groups
            if deleted.error_code != GroupIdNotFound.code:  # it existed: the first try of the request has deleted it
                checked(deleted)

    async def delete_offsets(self, group: str, partitions: Collection[TopicPartition | str]) -> None:
        """Remove what a group has committed for partitions, ("orders", 0) or "orders-0". Durable on return.

        It is no error if nothing was committed for one of them. Raises GroupSubscribedToTopic while a member subscribes
        to the topic, and GroupIdNotFound.
        """
        wanted: dict[str, list[int]] = {}
        for topic, partition in listed_partitions(partitions):
            wanted.setdefault(topic, []).append(partition)
        parts = [m.TopicPartitions(b"", topic, numbers) for topic, numbers in wanted.items()]
        request = m.DeleteOffsetsRequest(checked_text(group, _GROUP), parts)
        for deleted in (await self.cluster.call(request, m.DeleteOffsetsResponse)).partitions:
            checked(deleted)

    # --- within -----------------------------------------------------------------------------------------------------

    async def _described(self, group: str) -> m.DescribedGroup:
        (described,) = (await self._of_group(m.DescribeGroupsRequest([group]), m.DescribeGroupsResponse)).groups
        return described

    async def _of_group(self, request: m.Message, expected: type[R]) -> R:
        """Return the response about one group, after retries if its error may pass: a coordinator may be loading."""
        cluster = self.cluster
        retries = Retries(cluster.options, cluster.options.request_timeout_ms / 1000)
        while True:
            response = await cluster.call(request, expected)
            if not error_from_code(response.groups[0].error_code, "").retriable or not await retries.pause():
                return response
            cluster.forget_coordinator(request)

    async def _check_empty(self, group: str) -> m.DescribedGroup:
        """Return the description of a group without members, or of one that does not exist; else raise."""
        described = await self._described(group)
        if described.members:
            raise occupied(group, described.members)
        if described.error_code != GroupIdNotFound.code:
            checked(described)
        return described

    async def _committed(
        self, groups: Sequence[str], topics: Collection[Topic]
    ) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        async def ask(group: str) -> dict[TopicPartition, CommittedOffset]:
            response = await self.cluster.call(m.OffsetFetchRequest(group), m.OffsetFetchResponse)
            return committed_of_topics(response.partitions, topics)

        found: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        for first in range(0, len(groups), _GROUPS_AT_ONCE):
            some = groups[first : first + _GROUPS_AT_ONCE]
            found.update(zip(some, await asyncio.gather(*map(ask, some)), strict=True))
        return found

    async def _commit(self, group: str, resets: Sequence[OffsetReset], topics: dict[str, Topic]) -> None:
        offsets = [
            m.OffsetCommitPartition(topics[each.topic].topic_id.bytes, each.topic, each.partition, each.offset)
            for each in resets
        ]
        try:
            response = await self.cluster.call(m.OffsetCommitRequest(group, offsets), m.OffsetCommitResponse)
            for committed in response.partitions:
                checked(committed)
        except NonEmptyGroup:
            await self._check_empty(group)
            raise


def _chosen(
    targets: Target | dict[TopicPartition, Target], listed: list[TopicPartition] | None, topics: dict[str, Topic]
) -> dict[TopicPartition, Target]:
    """Return the target of each partition to reset: of those `listed`, or of all of `topics`."""
    if isinstance(targets, dict):
        if listed is not None and (left_out := sorted(targets.keys() ^ set(listed))):
            raise ValueError(f"where and partitions differ in {left_out[0][0]}-{left_out[0][1]}: leave out partitions")
        return targets
    if listed is None:
        listed = [(name, part.partition) for name, topic in topics.items() for part in topic.partitions]
    return dict.fromkeys(listed, targets)
