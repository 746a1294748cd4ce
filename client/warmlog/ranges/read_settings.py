"""How ranges are read.

Which columns a reader makes.
"""

from dataclasses import dataclass
from typing import NamedTuple

from warmlog.cluster.options import ConnectionOptions
from warmlog.ranges.fetch_window import FETCH_BYTES, IN_FLIGHT
from warmlog_protocol.messages import IsolationLevel

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True)
class Remedies:
    """What errors tell the user to do, in the words of whatever it is that reads; those here are arrow_reader's."""

    when_lost: str = "make a new reader with a later start"
    """Offsets are gone."""
    when_cut: str = "make a new reader"
    """The log was cut, and written again, since these ranges were planned."""
    when_made_anew: str = "make a new reader"
    """The topic is another one now, or none."""
    when_damaged: str = "other offsets can be read: leave these out with start and end"


@dataclass(frozen=True)
class ReadSettings:
    """Of one task, or of one reader without Spark."""

    fetch_bytes: int = FETCH_BYTES
    in_flight: int = IN_FLIGHT
    max_wait_ms: int = 500
    deadline_s: float = 120.0
    """How long nothing may come; as the poll timeout of Spark's Kafka connector (spark.network.timeout)."""
    verifies_crc: bool = True
    fails_on_data_loss: bool = True
    """Whether offsets that are gone or unreadable are an error; otherwise they are skipped with a warning."""
    remedies: Remedies = Remedies()
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    """Whether records of transactions that were aborted, or are open, are left out."""
    limit: int | None = None
    """Of how many records, over all ranges, reading ends."""
    bootstrap: tuple[str, ...] = ()
    """Brokers to ask for the leader after a failure, beside the one that was it."""
    connection: ConnectionOptions = ConnectionOptions(  # noqa: RUF009 - frozen
        client_name="warmlog-spark", receive_buffer_bytes=16 * 1024
    )
    """Answers are large: with a small shared buffer nearly all of each is received where it is read."""


class Projection(NamedTuple):
    """Names of columns in their order; those in `as_text`, key or value, are made strings."""

    names: tuple[str, ...] = KAFKA_COLUMNS
    as_text: frozenset[str] = frozenset()
