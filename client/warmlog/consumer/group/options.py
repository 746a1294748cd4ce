"""The options of a consumer with a group, and their bounds."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from warmlog.errors import InvalidConfig
from warmlog.points import TopicPartition
from warmlog.texts import is_encodable

OnPartitions = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""A callback with partitions: a function or a coroutine function."""

COMMIT_MODES = ("auto", "manual")
MAX_NAME_BYTES = 249


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
        for name in ("session_timeout_ms", "rebalance_timeout_ms", "commit_interval_ms", "max_poll_interval_ms"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(f"{name}={value}: at least 1 expected")
        if self.commit not in COMMIT_MODES:
            raise InvalidConfig(f"commit={self.commit!r}: one of {', '.join(COMMIT_MODES)} expected")
        for name in ("on_assigned", "on_revoked", "on_lost"):
            callback = getattr(self, name)
            if callback is not None and not callable(callback):
                raise InvalidConfig(f"{name}={callback!r}: a function that takes a list of partitions is expected")


def _check_name(option: str, name: object) -> None:
    if not isinstance(name, str) or not is_encodable(name) or not 1 <= len(name.encode()) <= MAX_NAME_BYTES:
        raise InvalidConfig(f"{option}={name!r:.80}: a name of 1 to {MAX_NAME_BYTES} bytes is expected")
