"""One member of a group, in a process of its own: `python -m faults.history.member` (see `main`).

Each event is a line of JSON in its journal, written before the next step: what a SIGKILL leaves is what has happened.
"""

import argparse
import asyncio
import json
import logging
import os
import time
from collections.abc import Collection

from warmlog import Consumer
from warmlog.errors import WarmlogError

GIVE_UP_MS = 400_000


class Journal:
    """Events with the time by time.monotonic, which all processes of a machine share."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, event: str, **fields: object) -> None:
        line = json.dumps({"at": time.monotonic(), "event": event, **fields}) + "\n"
        os.write(self._descriptor, line.encode())


async def work(options: argparse.Namespace, journal: Journal) -> None:
    """Join, handle and commit until an error ends the consumer."""

    def note(event: str, partitions: Collection[tuple[str, int]]) -> None:
        journal.note(event, partitions=[partition for _, partition in partitions])

    consumer = Consumer(
        options.address,
        topics=[options.topic],
        group=options.group,
        instance_id=options.instance_id,
        session_timeout_ms=options.session_timeout_ms,
        commit="manual",
        on_assigned=lambda partitions: note("assigned", partitions),
        on_revoked=lambda partitions: note("revoked", partitions),
        on_lost=lambda partitions: note("lost", partitions),
        max_wait_ms=100,
        unavailable_timeout_ms=GIVE_UP_MS,
    )
    async with consumer:
        async for batch in consumer.batches():
            place = {"partition": batch.partition, "first": batch.base_offset, "next": batch.next_offset}
            journal.note("handled", **place)
            journal.note("committing", **place)
            await consumer.commit(batch)
            journal.note("committed", **place)


async def run(options: argparse.Namespace) -> None:
    """Work, and begin again after an error, such as the loss of the membership."""
    journal = Journal(options.journal)
    journal.note("began")
    while True:
        try:
            await work(options, journal)
        except WarmlogError as error:
            journal.note("failed", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(0.1)


def parsed_options() -> argparse.Namespace:
    """Return the options that `faults.history.members` gives to a member."""
    parser = argparse.ArgumentParser()
    for name in ("address", "group", "topic", "journal"):
        parser.add_argument(name)
    parser.add_argument("--instance-id")
    parser.add_argument("--session-timeout-ms", type=int)
    return parser.parse_args()


def main() -> None:
    """Work until killed."""
    logging.getLogger("warmlog").setLevel(logging.CRITICAL)
    asyncio.run(run(parsed_options()))


if __name__ == "__main__":
    main()
