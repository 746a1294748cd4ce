"""How ranges are read, and which columns."""

from dataclasses import dataclass
from typing import NamedTuple

from warmlog.ranges.fetch_window import FETCH_BYTES, IN_FLIGHT
from warmlog_protocol.messages import IsolationLevel
from warmlog_transport.options import ConnectionOptions

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True)
class Remedies:
    """What errors tell the user to do; the defaults are for `arrow_reader`."""

    when_lost: str = "make a new reader with a later start"
    when_cut: str = "make a new reader"
    """The log was truncated after these ranges were planned."""
    when_recreated: str = "make a new reader"
    """The topic was deleted or recreated."""
    when_damaged: str = "other offsets can be read: leave these out with start and end"


@dataclass(frozen=True)
class ReadSettings:
    """Of one task, or of one reader without Spark."""

    fetch_bytes: int = FETCH_BYTES
    in_flight: int = IN_FLIGHT
    max_wait_ms: int = 500
    deadline_s: float = 120.0
    """How long reading may make no progress; the default of Spark's Kafka connector (spark.network.timeout)."""
    verifies_crc: bool = True
    fails_on_data_loss: bool = True
    """Whether lost or unreadable offsets are an error; otherwise they are skipped with a warning."""
    remedies: Remedies = Remedies()
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    limit: int | None = None
    """The most records to read, over all ranges."""
    bootstrap: tuple[str, ...] = ()
    """Brokers to ask for the leader after a failure, besides the last known leader."""
    connection: ConnectionOptions = ConnectionOptions(  # noqa: RUF009 - frozen
        client_name="warmlog-spark", receive_buffer_bytes=16 * 1024
    )
    """The small buffer has large responses received into memory of their own, without a copy."""


class Projection(NamedTuple):
    """Names of columns in their order; those in `as_text`, key or value, become strings."""

    names: tuple[str, ...] = KAFKA_COLUMNS
    as_text: frozenset[str] = frozenset()
