"""The options of a producer, checked."""

from dataclasses import dataclass
from typing import Literal, get_args

from warmlog.errors import InvalidConfig, InvalidRequiredAcks
from warmlog.producer.record_input import Partitioner
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages import ACKS_ALL, ACKS_LEADER, ACKS_NONE

MAX_IN_FLIGHT_WITH_SEQUENCES = 5
"""The number of batches of a producer that a partition of the broker remembers, as in Kafka."""

_ACKS = {"all": ACKS_ALL, -1: ACKS_ALL, 1: ACKS_LEADER, 0: ACKS_NONE, "1": ACKS_LEADER, "0": ACKS_NONE, "-1": ACKS_ALL}


Expired = Literal["warn", "error", "accept"]
"""What happens to a record whose own timestamp is older than its topic keeps records."""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """See `Producer`. `acks` is the number on the wire."""

    acks: int
    is_idempotent: bool
    codec: Codec
    linger_ms: float
    batch_bytes: int
    buffer_bytes: int
    high_water_bytes: int
    delivery_timeout_ms: int
    max_in_flight: int
    expired: Expired = "warn"
    partitioner: Partitioner | None = None
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000

    def __post_init__(self) -> None:
        if self.expired not in get_args(Expired):
            raise InvalidConfig(f'expired={self.expired!r}: "warn", "error" or "accept" expected')
        if self.is_idempotent and self.max_in_flight > MAX_IN_FLIGHT_WITH_SEQUENCES:
            raise InvalidConfig(
                f"max_in_flight={self.max_in_flight}: an idempotent producer may have at most "
                f"{MAX_IN_FLIGHT_WITH_SEQUENCES} batches of a partition in flight"
            )


def parse_acks(acks: str | int) -> int:
    number = _ACKS.get(acks) if type(acks) in (str, int) else None
    if number is None:
        raise InvalidRequiredAcks(f'acks={acks!r}: "all", 1 or 0 expected')
    return number
