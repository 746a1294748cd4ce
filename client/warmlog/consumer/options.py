"""The options of a consumer and their bounds."""

import re
from dataclasses import dataclass

from warmlog.errors import InvalidConfig
from warmlog.records.verdict import Policy
from warmlog_protocol.messages import IsolationLevel
from warmlog_transport.options import check_own_types

_ISOLATION = {
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
    "read_committed": IsolationLevel.READ_COMMITTED,
}
_LEAST = {
    "max_bytes": 1,
    "partition_max_bytes": 1,
    "min_bytes": 1,
    "max_wait_ms": 0,
    "prefetch_bytes": 1,
    "max_decompressed_bytes": 1,
    "unavailable_timeout_ms": 0,
}
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
        check_own_types(verify_crc=self.verify_crc)
        for name, least in _LEAST.items():
            check_own_types(**{name: getattr(self, name)})
            if getattr(self, name) < least:
                raise InvalidConfig(f"{name}={getattr(self, name)}: at least {least} expected")
        if self.on_out_of_range not in OUT_OF_RANGE_POLICIES:
            raise InvalidConfig(
                f"on_out_of_range={self.on_out_of_range!r}: one of {', '.join(OUT_OF_RANGE_POLICIES)} expected"
            )


def parse_isolation(isolation: str) -> int:
    """Return the number on the wire of "read_uncommitted" or "read_committed"."""
    check_own_types(isolation=isolation)
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
