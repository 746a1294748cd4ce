"""Every error that the client raises, in one tree.

::

    WarmlogError                        (warmlog_protocol.errors)
    ├── ApiError                        refused by the broker; one class for each error code, with `retriable`
    │   ├── CorruptBatch
    │   │   └── UnreadableBatch         a range of damaged or lost offsets; the next call reads on after it
    │   └── OffsetOutOfRange
    │       └── LogTruncated            records that were read are no longer in the log
    ├── ProtocolError                   LocalProtocolError, RemoteProtocolError
    └── ClientError
        ├── BrokerUnavailable           no connection, or it was lost before the response
        ├── DeliveryTimeout             no acknowledgement within `delivery_timeout_ms`
        ├── BufferFull                  `send` without `drain`: `buffer_bytes` are not acknowledged
        ├── ClientClosed                used before `start` or after `close`
        ├── ConsumerBusy                something is read while another iterator of the consumer is open
        ├── MembershipLost              a consumer is no longer a member of its group; the next read joins again
        ├── TransactionAborted          the record belongs to a transaction that was aborted
        ├── RecordExpired               older than the topic's retention.ms, with expired="error"
        ├── PartitionerFailed           the producer's `partitioner` raised, or returned no partition; a ValueError
        └── WrongEventLoop              used in another event loop than the one it was started in

`may_pass` tells which of them are worth a retry.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

from warmlog_protocol.errors import *
from warmlog_transport.errors import BrokerUnavailable as BrokerUnavailable
from warmlog_transport.errors import ClientClosed as ClientClosed
from warmlog_transport.errors import ClientError as ClientError
from warmlog_transport.errors import WrongEventLoop as WrongEventLoop
from warmlog_transport.errors import may_pass as may_pass

E = TypeVar("E", bound=BaseException)


class TransactionAborted(ClientError):
    """The record belongs to a transaction that was aborted, or its offsets could not be added to it."""


class DeliveryTimeout(ClientError):
    """Records were not acknowledged in time. They may or may not be in the log: the last attempt had no response."""


class BufferFull(ClientError):
    """The producer's buffer is full: await `drain()` between sends."""


class RecordExpired(ClientError):
    """A record's own timestamp is older than the topic's retention.ms: it would be deleted at once. It was not sent."""


class PartitionerFailed(ClientError, ValueError):
    """The producer's `partitioner` raised an error, or returned something that is not a partition of the topic."""


class ConsumerBusy(ClientError):
    """Another iterator of the consumer is open, or a read is under way: one reads at a time."""


class _ErrorWithFields(WarmlogError):
    """An error with attributes of its own, which pickling, copying and another message keep."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)

    def reworded(self, message: str) -> Self:
        """Return the same error with another message and without its notes."""
        fields = {name: field for name, field in self.__dict__.items() if name != "__notes__"}
        return _restored(type(self), (message,), fields)


def _restored(kind: type[E], args: tuple[Any, ...], fields: dict[str, Any]) -> E:
    """Return an error as it was, without its constructor, whose parameters are not `args`."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class UnreadableBatch(_ErrorWithFields, CorruptBatch):
    """A range of offsets that cannot be read, because a batch is damaged or batches are lost.

    It begins at `base_offset`; reading continues at `next_offset`.
    """

    def __init__(self, message: str, topic: str, partition: int, base_offset: int, next_offset: int) -> None:
        super().__init__(f"{topic}-{partition}, offsets {base_offset} to {next_offset - 1}: {message}")
        self.reason = message
        self.topic = topic
        self.partition = partition
        self.base_offset = base_offset
        self.next_offset = next_offset


class LogTruncated(_ErrorWithFields, OffsetOutOfRange):
    """The log was truncated at `diverging_offset` after it had been read up to `offset`: later records are new.

    For ranges that were planned and not read yet, `offset` is their end. `diverging_offset` is None if the broker does
    not know it. Kafka's LogTruncationException (KIP-320).
    """

    def __init__(
        self, topic: str, partition: int, offset: int, diverging_offset: int | None, message: str | None = None
    ) -> None:
        if diverging_offset is not None and diverging_offset < 0:  # as brokers say it
            diverging_offset = None
        where = "an unknown offset" if diverging_offset is None else diverging_offset
        super().__init__(
            message
            or f"{topic}-{partition}: the log was cut at {where} after it had been read up to {offset}, and the "
            "records from there on are new"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.diverging_offset = diverging_offset


class MembershipLost(_ErrorWithFields, ClientError):
    """A consumer is no longer a member of its group, and others have its partitions. The next read joins again.

    `since` is when it last heard that it was one. `partitions` has the offsets that it has handled without committing
    them: the partitions' next owners handle these again.
    """

    def __init__(self, group: str, since: datetime, reason: str, partitions: Mapping[tuple[str, int], range]) -> None:
        ranges = [
            f"{topic}-{partition} from {offsets.start} to {offsets.stop - 1}"
            for (topic, partition), offsets in sorted(partitions.items())
            if offsets
        ]
        again = f"; not committed, so that others handle it again: {', '.join(ranges)}" if ranges else ""
        super().__init__(
            f"no longer a member of group {group!r}, of which it last heard at {since:%Y-%m-%d %H:%M:%S} UTC: {reason}"
            f"{again}. Read on to join again"
        )
        self.group = group
        self.since = since
        self.partitions = dict(partitions)


if not TYPE_CHECKING:  # type checkers take every name of the star import, and know no computed list
    __all__ = ["ErrorCode", "error_from_code"]
    __all__ += [
        name
        for name, found in vars().copy().items()
        if isinstance(found, type) and issubclass(found, WarmlogError) and name[0] != "_"
        if found is not TransactionCoordinatorFenced  # of parts of a broker: no client gets it
    ]
