"""Runs one job of a page, `recipe.py PAGE BROKER OUTPUT JOB`, as a program of its own that may be killed at any time.

The page's functions are defined, and nothing of it is called but JOB. A record that the page's `handle` gets takes a
while, and is noted in OUTPUT, as a job would write its result.
"""

import asyncio
import functools
import json
import sys
from pathlib import Path
from typing import Any

from blocks import ADDRESS, blocks_of

import warmlog

HANDLING_S = 0.01


def main(page: Path, broker: str, output: Path, job: str) -> None:
    warmlog.Consumer = functools.partial(warmlog.Consumer, session_timeout_ms=2000)  # type: ignore[misc,assignment]
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.language == "python" and "async def" in block.text:
            lines = block.text.replace(ADDRESS, broker).splitlines()
            kept = [line for line in lines if not line.startswith(("asyncio.run(", "print("))]
            exec(compile("\n".join(kept), page, "exec"), names)

    async def handle(record: warmlog.Record) -> None:
        await asyncio.sleep(HANDLING_S)
        with output.open("ab") as file:
            file.write((record.value or b"") + b"\n")
        json.loads(record.value or b"")

    names["handle"] = handle
    asyncio.run(names[job]())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])
