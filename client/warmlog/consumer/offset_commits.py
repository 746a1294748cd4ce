"""What a consumer commits for its group, and when.

An automatic commit covers what was delivered before the last item (`Cursor.finished`), `commit()` all that was
delivered, and `commit(what)` what its caller says.
"""

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Never

from warmlog.consumer.consumer_core import ConsumerCore
from warmlog.consumer.group.membership import Owned
from warmlog.consumer.group.offsets import Errors, GroupMetadata, Offsets, OffsetTransaction
from warmlog.consumer.options import GroupOptions
from warmlog.consumer.partition_reader import Place
from warmlog.consumer.starting import FIXED, GroupStart
from warmlog.errors import InvalidConfig, StaleMemberEpoch, WarmlogError
from warmlog.points import checked_offset, parse_partition
from warmlog.records.batch import Batch, Record
from warmlog.texts import checked_text
from warmlog_protocol.messages import NO_LEADER_EPOCH, FetchedOffset
from warmlog_transport.connection import cancel
from warmlog_transport.errors import TOPIC_IS_GONE
from warmlog_transport.responses import TopicPartition

_log = logging.getLogger("warmlog")

Committable = Batch | Record | Mapping[TopicPartition | str, int]
LAST_COMMIT_TIMEOUT_S = 5.0
"""How long a consumer that is closed tries to commit."""
INTERRUPTED_COMMIT_S = 0.5
"""The same where Ctrl-C or a cancellation ends its block."""
STAY_INTERVAL_S = 300.0
"""How often a reader that is no member fetches its offsets, so that a broker that has restarted keeps them, too: it
looks for those to forget every 10 minutes."""
KEEP_UP_S = 0.1
"""How long a read waits for an automatic commit for which the user's code has left no time."""


class OffsetCommits:
    """Commits for a group from outside of it: the group must have no members. `Member` is the other kind."""

    def __init__(self, core: ConsumerCore, options: GroupOptions, start: GroupStart) -> None:
        self._core = core
        self._options = options
        self._start = start
        self._offsets = Offsets(core.cluster, lambda: self.metadata)
        self._committed: dict[Owned, int] = {}
        """What is committed as far as is known, -1 for nothing. Automatic commits never go below it."""
        self._asked: dict[Owned, Place] = {}
        """Commits that are under way, or whose outcome is not known. Automatic commits never go below these either."""
        self._task: asyncio.Task[None] | None = None
        self._staying: asyncio.Task[None] | None = None
        self._due_at = math.inf
        """When the next automatic commit begins; in the past while one is under way."""
        self._has_committed = asyncio.Event()
        self._told: type[WarmlogError] | None = None
        core.keep_up = self._keep_up

    @property
    def metadata(self) -> GroupMetadata:
        """Who commits."""
        return GroupMetadata(self._options.group)

    async def start(self) -> None:
        """Let all partitions continue where the group has committed, if it has."""
        for owned, at in (await self._offsets.fetch(self._partitions())).items():
            self._committed[owned] = at.offset
            if at.offset >= 0:
                self._core.seek_now(owned.tp, at.offset, at.leader_epoch)
        await self._commit_begun(self._partitions())
        self._commit_always()
        self._staying = asyncio.create_task(self._stay(), name="warmlog stay in use")

    async def stop(self, *, is_interrupted: bool) -> None:
        """Commit what is finished, unless that is done by hand, and wait for commits of other tasks."""
        try:
            await cancel(self._task, self._staying)
            await self._last_commit(is_interrupted)
        finally:
            await self._offsets.close()

    # --- by hand ----------------------------------------------------------------------------------------------------

    async def commit(
        self, what: Committable | None, metadata: str = "", transaction: OffsetTransaction | None = None
    ) -> None:
        """Commit durably, or with `transaction`; None: everything that was delivered."""
        if transaction is not None and self._options.commit == "auto":
            raise InvalidConfig('a consumer whose offsets are committed with a transaction needs commit="manual"')
        checked_text(metadata, "metadata")
        if what is None:  # what is committed already only with other metadata
            delivered = {owned: self._core.delivered(owned.tp) for owned in self._partitions()}
            places = {
                owned: place for owned, place in delivered.items() if metadata or place[0] != self._committed.get(owned)
            }
        else:
            places = self._places_of(what)
        self._core.steps += 1
        if not places:
            return
        self._core.settle({owned.tp for owned in places})
        errors = await self._commit(places, metadata, transaction)
        for error in errors.values():
            raise error

    async def rewind(self) -> None:
        """Continue every partition where the group has committed, or where this consumer began.

        A topic that was recreated continues at its start, or where the group has committed in the new one.
        """
        self._core.steps += 1
        self._core.settle(self._core.readers)
        await self._offsets.ended()  # one that was cancelled may still take place
        read = [Owned(self._core.readers[each.tp].next_topic_id, *each.tp) for each in self._partitions()]
        for owned, at in (await self._offsets.fetch(read)).items():
            reader = self._core.readers.get(owned.tp)
            if reader is not None and reader.next_topic_id == owned.topic_id:
                began = reader.began if reader.new_topic_id is None else 0
                self._core.seek_now(owned.tp, *((at.offset, at.leader_epoch) if at.offset >= 0 else (began, -1)))

    async def committed(self, partitions: Iterable[TopicPartition | str] | None) -> dict[TopicPartition, FetchedOffset]:
        """Return what is committed for these partitions, or all that are read; offset -1 if nothing is."""
        read = self._core.readers
        given = list(read) if partitions is None else [parse_partition(p, "partitions") for p in partitions]
        names = sorted({topic for topic, number in given if (topic, number) not in read})
        ids = {topic.name: topic.topic_id.bytes for topic in await self._core.cluster.topics(names)} if names else {}
        wanted = [self._with_id(each) if each in read else Owned(ids[each[0]], *each) for each in given]
        found = await self._offsets.fetch(wanted, GroupMetadata(self._options.group), needs_stable=False)
        return {owned.tp: at for owned, at in found.items()}

    def _places_of(self, what: Committable) -> dict[Owned, Place]:
        match what:
            case Batch():
                return {self._read_in_time(what): (what.next_offset, what.leader_epoch)}
            case Record():
                return {self._read_in_time(what): (what.offset + 1, NO_LEADER_EPOCH)}
            case Mapping():
                return {
                    self._read(parse_partition(each, "commit")): (checked_offset(offset), NO_LEADER_EPOCH)
                    for each, offset in what.items()
                }
        raise TypeError(f"commit({what!r}): a Batch, a Record or a mapping from partitions to offsets is expected")

    def _read(self, partition: TopicPartition) -> Owned:
        if partition not in self._core.readers:
            self._refuse(partition)
        return self._with_id(partition)

    def _read_in_time(self, what: Batch | Record) -> Owned:
        """The partition of `what`, unless that was read before the partition was given up and assigned again."""
        partition = (what.topic, what.partition)
        owned = self._read(partition)
        end = what.next_offset if isinstance(what, Batch) else what.offset + 1
        began = self._core.readers[partition].began
        if end < began:
            raise StaleMemberEpoch(
                f"{what.topic}-{what.partition}: this was read before the partition was given up, and the group has "
                f"come to offset {began} since: a commit of {end} would take it back. Seek first if that is wanted"
            )
        return owned

    def _refuse(self, partition: TopicPartition) -> Never:
        raise ValueError(f"this consumer does not read {partition[0]}-{partition[1]}")

    def _with_id(self, partition: TopicPartition) -> Owned:
        return Owned(self._core.readers[partition].topic_id, *partition)

    def _partitions(self) -> Collection[Owned]:
        return [self._with_id(each) for each in self._core.readers]

    # --- automatically ----------------------------------------------------------------------------------------------

    async def _commit_begun(self, partitions: Iterable[Owned]) -> None:
        """Commit where reading begins, unless something is: after a crash, `start` may mean a later offset."""
        if self._options.commit == "auto":
            begun = [each for each in partitions if self._committed.get(each) == -1]
            await self._commit_finished(each for each in begun if self._start.of(each).kind not in FIXED)

    def _commit_always(self) -> None:
        if self._options.commit == "auto":
            self._task = asyncio.create_task(self._commit_in_turns(), name="warmlog automatic commits")

    async def _commit_in_turns(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._due_at = loop.time() + self._options.commit_interval_ms / 1000
            self._has_committed.clear()
            await asyncio.sleep(self._options.commit_interval_ms / 1000)
            await self._commit_finished(self._partitions())
            self._has_committed.set()

    async def _keep_up(self) -> None:
        """Give an automatic commit that is due time to take place: the user's code may block the event loop."""
        if self._task is None or asyncio.get_running_loop().time() < self._due_at:
            return
        self._due_at = math.inf  # one that takes longer goes on meanwhile
        with suppress(TimeoutError):
            async with asyncio.timeout(KEEP_UP_S):
                await self._has_committed.wait()

    async def _commit_finished(self, partitions: Iterable[Owned]) -> WarmlogError | None:
        """Commit what the user has finished with. An error is logged and returned: a later commit includes it."""
        places = {}
        for owned in partitions:
            place = self._core.finished(owned.tp)
            if place[0] > self._committed.get(owned, -1) and place[0] >= self._asked.get(owned, place)[0]:
                places[owned] = place
        if not places:
            return None
        try:
            errors = await self._commit(places)
        except WarmlogError as error:
            self._tell(error)
            return error
        for refused in errors.values():
            if not isinstance(refused, (StaleMemberEpoch, *TOPIC_IS_GONE)):  # it belongs to another, or to none
                self._tell(refused)
                return refused
        self._told = None
        return None

    def _tell(self, error: WarmlogError) -> None:
        if type(error) is not self._told:
            self._told = type(error)
            _log.warning("group %s: the automatic commit has failed and is tried again: %s", self._options.group, error)

    async def _last_commit(self, is_interrupted: bool) -> None:
        limit_s = INTERRUPTED_COMMIT_S if is_interrupted else LAST_COMMIT_TIMEOUT_S
        timeout = asyncio.timeout if is_interrupted else self._core.cluster.timeout
        try:
            async with timeout(limit_s):
                if self._task is not None:  # else the start has failed, and what is committed is not known
                    await self._commit_finished(self._partitions())
                await self._offsets.ended()
        except TimeoutError:
            _log.warning(
                "group %s: the last commit had no response within %g s: records may be handled twice",
                self._options.group,
                limit_s,
            )

    async def _stay(self) -> None:
        while True:
            await asyncio.sleep(STAY_INTERVAL_S)
            with suppress(WarmlogError):
                await self._offsets.fetch(self._partitions(), needs_stable=False)

    # --- within -----------------------------------------------------------------------------------------------------

    async def _commit(
        self, places: Mapping[Owned, Place], metadata: str = "", transaction: OffsetTransaction | None = None
    ) -> Errors:
        self._asked.update(places)
        if transaction is not None:
            errors = await self._offsets.commit_within(transaction, places, metadata)
        else:
            errors = await self._offsets.commit(places, metadata)
            self._committed.update({owned: place[0] for owned, place in places.items() if owned not in errors})
        for owned, place in places.items():
            if self._asked.get(owned) == place:
                del self._asked[owned]
        return errors
