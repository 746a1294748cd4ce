"""Records on their way to and from a topic, as `produce`, `consume` and `topic copy` move them."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.output import counted, note

if TYPE_CHECKING:
    from warmlog import Batch, Producer
    from warmlog.cli.terminal.status import Progress
    from warmlog.records.batch import Header


class Parcel(NamedTuple):
    """Records, as the arguments that `send_many` takes in one call; without `partition` the keys choose."""

    values: "Sequence[bytes | None]"
    keys: "Sequence[bytes | None] | None" = None
    timestamps_ms: int | Sequence[int] | None = None
    headers: "Sequence[Sequence[Header] | None] | None" = None
    partition: int | None = None

    @classmethod
    def of(cls, batches: "Sequence[Batch]", partition: int | None, now_ms: int) -> "Parcel":
        """The records of consecutive batches; one without a timestamp (-1) gets `now_ms`."""
        timestamps_ms = [timestamp_ms for batch in batches for timestamp_ms in batch.timestamps_ms]
        if min(timestamps_ms) < 0:
            timestamps_ms = [now_ms if timestamp_ms < 0 else timestamp_ms for timestamp_ms in timestamps_ms]
        return cls(
            [value for batch in batches for value in batch.values],
            [key for batch in batches for key in batch.keys],
            timestamps_ms,
            [headers for batch in batches for headers in batch.headers]
            if any(batch.has_headers for batch in batches)
            else None,
            partition,
        )


async def send_parcels(
    producer: "Producer", topic: str, parcels: Sequence[Parcel], size_bytes: int, progress: "Progress"
) -> None:
    """Send all parcels, of `size_bytes` together, and raise the first error once each has succeeded or failed."""
    sends = (producer.send_many(topic, **parcel._asdict()) for parcel in parcels)
    results = await asyncio.gather(*sends, return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    acknowledged = sum(result.count for result in results if not isinstance(result, BaseException))
    progress.add(acknowledged, 0 if errors else size_bytes)
    if errors:
        raise errors[0]


@asynccontextmanager
async def sending(producer: "Producer") -> "AsyncIterator[Producer]":
    """Start a producer, and close it; after a failure or Ctrl-C without a wait for records in flight."""
    from warmlog.errors import WarmlogError

    await producer.start()
    try:
        yield producer
    except BaseException:
        with suppress(WarmlogError):
            await producer.close(timeout_s=0)
        raise
    await producer.close()


class Damage:
    """Counts the ranges of offsets that could not be read."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def skipped(self) -> Iterator[None]:
        """Report UnreadableBatch on stderr and continue after the block; word other losses for the command line."""
        from warmlog.errors import InconsistentTopicId, LogTruncated, OffsetOutOfRange, UnreadableBatch

        try:
            yield
        except UnreadableBatch as error:
            self.count += 1
            note(f"skipped: {error}")
        except (InconsistentTopicId, LogTruncated, OffsetOutOfRange) as error:
            what, _, _ = str(error).partition(". Seek")
            raise CommandFailed(f"{what}. Begin elsewhere: --from earliest, latest, an offset or a time") from error

    def check(self, what: str) -> None:
        """Raise CommandFailed, naming `what` was read, if something was skipped."""
        if self.count:
            raise CommandFailed(f"{what}: {counted(self.count, 'range')} of offsets cannot be read")
