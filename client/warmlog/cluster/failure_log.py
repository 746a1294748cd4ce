"""Which failure of a partition is news, when it is tried again and again.

A client tries again by itself, often and for long: who runs it should hear of it, but once. Something is told when it
has lasted GRACE_S, as a new leader or a move to another directory takes a moment; and again when its cause is another
one, or when it had worked in between, but never more often than every TELL_AGAIN_S for one partition.
"""

from dataclasses import dataclass

from warmlog.errors import BrokerUnavailable, WarmlogError

GRACE_S = 1.0
TELL_AGAIN_S = 30.0

TopicPartition = tuple[str, int]


@dataclass(slots=True)
class _Trouble:
    """A partition that has failed. The cause is the error's class, as messages hold numbers that change."""

    since_s: float | None
    told: type[WarmlogError] | None = None
    told_at_s: float = float("-inf")


class FailureLog:
    """What was told of each partition. `now_s` is any clock that does not go back."""

    def __init__(self) -> None:
        self._by_place: dict[TopicPartition, _Trouble] = {}

    def is_news(self, place: TopicPartition, error: WarmlogError, now_s: float) -> bool:
        """Whether to tell that `place` has failed with `error`; if so, it counts as told.

        A lost connection is not the partition's trouble: BrokerLink tells of it.
        """
        if isinstance(error, BrokerUnavailable):
            return False
        trouble = self._by_place.setdefault(place, _Trouble(now_s))
        if trouble.since_s is None:
            trouble.since_s = now_s
        is_early = now_s - trouble.since_s < GRACE_S or now_s - trouble.told_at_s < TELL_AGAIN_S
        if is_early or trouble.told is type(error):
            return False
        trouble.told, trouble.told_at_s = type(error), now_s
        return True

    def worked(self, place: TopicPartition) -> None:
        """The next failure of `place` begins anew."""
        trouble = self._by_place.get(place)
        if trouble is not None:
            trouble.since_s = trouble.told = None
