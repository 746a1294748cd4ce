"""What many programs need around the clients: the table of a compacted topic, dead letters, retries after a delay."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Self

from warmlog.consumer.consumer import Consumer
from warmlog.records.batch import Record

FAILED = "failed."
"""How the names of the headers begin that `failed_record` adds."""
MAX_DIGITS = 19
"""Of the number of attempts: a longer one is none."""


class KeyTable(Mapping[bytes, bytes]):
    """The last value of each key in a topic, as of the start and of each `refresh`; for one thread.

    It is read whole into memory. A null value removes its key, and records without a key are left out. It is the truth
    for a topic with cleanup.policy=compact, whether the broker has compacted it yet or not.
    """

    def __init__(self, bootstrap: str, topic: str, *, isolation: str = "read_committed", **options: Any) -> None:
        """`options` are those of `Consumer`, without those of groups."""
        self._consumer = Consumer(bootstrap, topics=[topic], isolation=isolation, **options)
        self._values: dict[bytes, bytes] = {}

    async def __aenter__(self) -> Self:
        """Read the topic. Raises what `Consumer.start` and reading raise."""
        await self._consumer.start()
        try:
            await self.refresh()
        except BaseException:
            await self._consumer.close()
            raise
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._consumer.__aexit__(*raised)

    async def refresh(self) -> set[bytes]:
        """Apply what was written since; return the keys that it was about."""
        changed: set[bytes] = set()
        async for batch in self._consumer.batches(until="latest"):
            for key, value in zip(batch.keys, batch.values, strict=True):
                if key is None:
                    continue
                changed.add(key)
                if value is None:
                    self._values.pop(key, None)
                else:
                    self._values[key] = value
        return changed

    def __getitem__(self, key: bytes) -> bytes:
        return self._values[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def failed_record(record: Record, error: BaseException) -> dict[str, Any]:
    """Return the arguments of `send` that write a record, which could not be handled, to a topic for such.

    Key, value and headers stay. Further headers tell why (`failed.error`), where it was first read (`failed.topic`,
    `failed.partition`, `failed.offset`, `failed.timestamp_ms`), and how often it has failed (`failed.attempts`; what is
    no number counts as none).
    """
    known: dict[str, Any] = {
        f"{FAILED}{name}": str(getattr(record, name)).encode()
        for name in ("topic", "partition", "offset", "timestamp_ms")
    }
    known |= {name: value for name, value in record.headers if name.startswith(FAILED)}
    before = known.get(f"{FAILED}attempts") or b""
    is_count = before.isdigit() and len(before) < MAX_DIGITS  # another program may have written anything there
    known[f"{FAILED}attempts"] = b"%d" % (int(before) + 1 if is_count else 1)
    known[f"{FAILED}error"] = f"{type(error).__name__}: {error}".encode(errors="replace")[:1000]
    kept = [header for header in record.headers if header[0] not in known]
    return {"value": record.value, "key": record.key, "headers": [*kept, *known.items()]}


async def delayed(consumer: Consumer, delay_s: float) -> AsyncGenerator[Record, None]:
    """Yield the records of a consumer once they are `delay_s` old: a topic whose records are to be handled later.

    Records of one partition keep their order. While it waits, the consumer asks for no others: give a member of a group
    a `max_poll_interval_ms` above the delay.
    """
    async for record in consumer.records():
        await asyncio.sleep(max(record.timestamp_ms / 1000 + delay_s - time.time(), 0))
        yield record
