"""The options of a consumer and their bounds."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from warmlog.errors import InvalidConfig
from warmlog.points import TopicPartition
from warmlog.records.verdict import Policy
from warmlog.texts import is_encodable
from warmlog_protocol.messages import IsolationLevel
from warmlog_transport.options import check_own_options

_ISOLATION = {"read_uncommitted": IsolationLevel.READ_UNCOMMITTED, "read_committed": IsolationLevel.READ_COMMITTED}
OnPartitions = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""A callback with partitions: a function or a coroutine function."""

COMMIT_MODES = ("auto", "manual")
MAX_NAME_BYTES = 249
OUT_OF_RANGE_POLICIES = ("error", "earliest", "latest")


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """As `Consumer` takes them, verified. `isolation` is the number on the wire."""

    isolation: int
    max_bytes: int
    partition_max_bytes: int
    min_bytes: int
    max_wait_ms: int
    prefetch_bytes: int
    on_out_of_range: str
    verify_crc: bool
    max_decompressed_bytes: int
    unavailable_timeout_ms: int
    is_member: bool = False
    """Whether a group assigns the partitions: then it also decides about topics that are gone."""

    def loss_policy(self, *, is_endless: bool) -> Policy:
        """What to do about losses when reading without an end, or up to one."""
        if self.on_out_of_range == "error":
            return Policy.CONSUMER_RAISES
        return Policy.CONSUMER_RESETS if is_endless else Policy.CONSUMER_RESETS_WITHIN_TOPIC

    def __post_init__(self) -> None:
        if self.on_out_of_range not in OUT_OF_RANGE_POLICIES:
            raise InvalidConfig(
                f"on_out_of_range={self.on_out_of_range!r}: one of {', '.join(OUT_OF_RANGE_POLICIES)} expected"
            )


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """As `Consumer` takes them, verified."""

    group: str
    instance_id: str | None
    assignor: str
    session_timeout_ms: int | None
    rebalance_timeout_ms: int | None
    commit: str
    commit_interval_ms: int
    max_poll_interval_ms: int
    on_assigned: OnPartitions | None
    on_revoked: OnPartitions | None
    on_lost: OnPartitions | None

    def __post_init__(self) -> None:
        _check_name("group", self.group)
        if self.instance_id is not None:
            _check_name("instance_id", self.instance_id)
        if self.commit not in COMMIT_MODES:
            raise InvalidConfig(f"commit={self.commit!r}: one of {', '.join(COMMIT_MODES)} expected")
        for name in ("on_assigned", "on_revoked", "on_lost"):
            callback = getattr(self, name)
            if callback is not None and not callable(callback):
                raise InvalidConfig(f"{name}={callback!r}: a function that takes a list of partitions is expected")


def _check_name(option: str, name: object) -> None:
    if not isinstance(name, str) or not is_encodable(name) or not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        raise InvalidConfig(f"{option}={name!r:.80}: a name of 1 to {MAX_NAME_BYTES} bytes is expected")


def parse_isolation(isolation: str) -> int:
    """Return the number on the wire of "read_uncommitted" or "read_committed"."""
    check_own_options(isolation=isolation)
    level = _ISOLATION.get(isolation)
    if level is None:
        raise InvalidConfig(f"isolation={isolation!r}: one of {', '.join(_ISOLATION)} expected")
    return level


def parse_pattern(pattern: str) -> str:
    """Return a regular expression; InvalidConfig if it is not one."""
    try:
        re.compile(pattern)
        pattern.encode()
    except (re.error, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise InvalidConfig(f"pattern={pattern!r}: {error}; a Python regular expression is expected") from None
    return pattern
