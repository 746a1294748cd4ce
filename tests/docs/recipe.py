"""Runs one job of a page, `recipe.py PAGE BROKER OUTPUT JOB`, as a program of its own that may be killed at any time.

PAGE is a page or a program. Its functions are defined, and nothing of it is called but JOB: a call such as
`work("one")`, or the program of a block, given by one of its lines. Each delivery takes a while, and is noted in
OUTPUT.seen; what the page's `handle` gets, or is written where the page says "write it somewhere", is noted in OUTPUT,
as a job would write its result.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from blocks import ADDRESS, blocks_of

import warmlog
import warmlog.blocking

HANDLING_S = 0.01
SESSION_MS = 4000


def note(path: Path, values: Iterable[bytes | None]) -> None:
    with path.open("ab") as file:
        file.write(b"".join((value or b"") + b"\n" for value in values))


class Slowly:
    """An iterator of a consumer, of either kind, that takes a while over each item and notes that in `seen`."""

    seen: Path

    def __init__(self, items: Any) -> None:
        self._items = items

    def __aiter__(self) -> Self:
        return self

    def __iter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        item = await anext(self._items)
        note(self.seen, [b"one"])
        await asyncio.sleep(HANDLING_S)
        return item

    def __next__(self) -> Any:
        item = next(self._items)
        note(self.seen, [b"one"])
        time.sleep(HANDLING_S)
        return item

    async def aclose(self) -> None:
        await self._items.aclose()


def slowed(consumer: Any) -> Any:
    """The consumer's class, with such iterators and short sessions."""

    class Slow(consumer):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            of_group = {"session_timeout_ms": SESSION_MS} if "group" in options else {}
            super().__init__(*arguments, **of_group, **options)

        def batches(self, *arguments: Any, **options: Any) -> Any:
            return Slowly(super().batches(*arguments, **options))

        def records(self, *arguments: Any, **options: Any) -> Any:
            return Slowly(super().records(*arguments, **options))

    return Slow


def main(page: Path, broker: str, output: Path, job: str) -> None:
    Slowly.seen = output.with_suffix(".seen")
    warmlog.Consumer = slowed(warmlog.Consumer)  # type: ignore[misc]
    warmlog.blocking.Consumer = slowed(warmlog.blocking.Consumer)  # type: ignore[misc]

    async def handle(record: warmlog.Record) -> None:
        note(output, [record.value])
        json.loads(record.value or b"")

    names: dict[str, Any] = {"__name__": "page", "write": lambda batch: note(output, batch.values)}
    if page.suffix == ".py":
        exec(compile(page.read_text(), page, "exec"), names)
        asyncio.run(eval(job, names))
        return
    for block in blocks_of(page):
        text = block.text.replace(ADDRESS, broker).replace("# write it somewhere", "; write(batch)")
        if block.language == "python" and job in text.splitlines():
            exec(compile(text, page, "exec"), names)
            return
        if block.language == "python" and "def " in text:
            kept = [line for line in text.splitlines() if not line.startswith(("asyncio.run(", "print(", "assert "))]
            exec(compile("\n".join(kept), page, "exec"), names)
    names["handle"] = handle
    asyncio.run(eval(job, names))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])
