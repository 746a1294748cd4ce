"""What a leader says to its followers: the fetches that it holds, and what each follower has been told.

A follower's fetch is held until there is something to say: more of the log, a question of a client that needs its echo
(`confirm`), or a higher high watermark or log start. For these a quarter of `confirmation_ms` is waited, as under load
they go with the batches, unless it is the follower's first fetch, or consumers read from the follower. A leader that
could not confirm itself for half of that asks the store. What confirms it while nothing else happens is one echo of the
follower for all fetches that the leader holds (`serving`); without one for three eighths of `confirmation_ms` the fetch
is answered anyway.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from warmlog_broker.replica.partition import Partition
from warmlog_broker.replication import events as ev
from warmlog_broker.replication import leading
from warmlog_broker.replication.replica import Replica
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.segment.file_records import FileSlice

DELETION_MS = 20
"""A fetch is answered after this while a deletion waits: the follower learns of it, or tells that it is done."""
NEAR_MS = 600_000
"""Twice as long as a consumer reads from a near replica before it asks the leader again."""


class Reply(NamedTuple):
    """An answer to a fetch of a follower, with what is to be sent with it."""

    answer: ev.Answer
    flush_below: int = 0
    """The follower flushes at once what it has not flushed below this: appends wait for it."""
    slices: Sequence[FileSlice] = ()
    """The batches."""

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.slices)


class _Held(NamedTuple):
    fetch: ev.Fetch
    since_ms: int


class Answers:
    """What one replica, while it leads, has to say to each other one."""

    def __init__(
        self, partition: Partition, is_due: Callable[[int], None], echoed_ms: Callable[[int, int], int]
    ) -> None:
        """`is_due` and `echoed_ms` are those of `Messages`, for the replica."""
        self._partition = partition
        self._is_due = is_due
        self._echoed_ms = echoed_ms
        self._held: dict[int, _Held] = {}
        self._said: dict[int, ev.Answer] = {}
        """Answers that wait for no news."""
        self._told: dict[int, ev.Answer] = {}
        """The last answer of each follower: it knows the high watermark and the log start unless it never got that."""
        self._sent: dict[int, int] = {}
        """From where on batches were last sent to each follower."""
        self._read_near_ms: dict[int, int] = {}
        """When a consumer was last told to read from a follower."""

    def say(self, node: int, answer: ev.Answer) -> None:
        """Answer a fetch as soon as there is room in a response."""
        self._said[node] = answer
        self._is_due(node)

    def hold(self, fetch: ev.Fetch, now_ms: int) -> None:
        """Answer a fetch once there is something to say."""
        self._said.pop(fetch.node, None)
        self._held[fetch.node] = _Held(fetch, now_ms)
        told = self._told.get(fetch.node)
        if told is not None and fetch.echo_ms < told.sent_ms:
            del self._told[fetch.node]

    def read_near(self, node: int, now_ms: int) -> None:
        """Tell a follower the high watermark at once: a consumer reads from it."""
        self._read_near_ms[node] = now_ms

    def echoes(self) -> dict[int, int]:
        """Return the latest of this broker's times that each follower whose fetch is held has echoed."""
        return {node: self._echoed_ms(node, held.fetch.number) for node, held in self._held.items()}

    def refuse_all(self) -> None:
        """Refuse what is held, and forget what was told: the replica has another role."""
        held, self._held = self._held, {}
        self._told.clear()
        self._sent.clear()
        for node, (fetch, _) in held.items():
            self.say(node, leading.refusal(fetch))

    def look(self, replica: Replica, questions_ms: Collection[int], now_ms: int, *, is_deleting: bool) -> bool:
        """Answer what there is something to say to; return whether that has to be looked at again soon.

        `questions_ms` are the times of questions that wait for an echo; with `is_deleting` deletions wait, too.
        """
        is_restless = False
        for node, held in list(self._held.items()):
            echoed_ms = self._echoed_ms(node, held.fetch.number)
            is_unconfirmed = now_ms - max(held.since_ms, echoed_ms) >= replica.times.unconfirmed_ms
            told, log = self._told.get(node), replica.log
            is_behind = told is None or (told.high_watermark, told.log_start) != (log.high_watermark, log.start)
            is_restless = is_restless or is_unconfirmed or is_behind or echoed_ms == ev.NEVER
            waits_ms = now_ms - held.since_ms
            if (
                is_unconfirmed
                or log.end > held.fetch.offset
                or (is_behind and waits_ms >= self._patience_ms(node, replica, now_ms))
                or (is_deleting and waits_ms >= DELETION_MS)
                or any(held.fetch.echo_ms <= asked_ms for asked_ms in questions_ms)
            ):
                self._is_due(node)
        return is_restless

    def _patience_ms(self, node: int, replica: Replica, now_ms: int) -> int:
        """Return how long a fetch waits with such news; the first one of a follower does not."""
        is_read_near = now_ms - self._read_near_ms.get(node, ev.NEVER) < NEAR_MS
        return 0 if is_read_near or node not in self._told else replica.times.confirmation_ms // 4

    def take(self, node: int, replica: Replica, log: Log | None, max_bytes: int, now_ms: int) -> Reply | None:
        """Return the answer to a fetch, which is answered then; None if there is none to answer.

        Batches have at most `max_bytes`, or are the first one. What a read of the log raises leaves the fetch held.
        """
        said = self._said.pop(node, None)
        if said is not None:
            return Reply(said)
        held = self._held.get(node)
        if held is None or log is None:
            return None
        answer = leading.answer(replica, held.fetch, now_ms)
        slices: Sequence[FileSlice] = ()
        if answer.verdict is ev.Verdict.AGREES:
            data = log.reader.read(answer.offset, max_bytes, bound="log_end")
            if data.size_bytes:
                slices = data.slices
                if self._sent.get(node) == answer.offset:
                    self._partition.check_crcs(slices)
        del self._held[node]
        self._told[node] = answer
        if slices:
            self._sent[node] = answer.offset
        return Reply(answer, self._partition.awaited_below, slices)
