"""A consumer and a producer that copy exactly once, in a process: `python -m faults.history.transactional.pair`.

A transaction has what was read in several ways, also parts of batches, and commits offsets once or more. Some are
aborted. After an error it begins again where the group has committed.
"""

import argparse
import asyncio
import logging
from random import Random

from faults.history.member import GIVE_UP_MS, Journal
from faults.history.transactional.ways import Ways
from warmlog import Consumer, Producer
from warmlog.errors import StaleMemberEpoch, WarmlogError

TRANSACTION_TIMEOUT_MS = 10_000
"""How long a process that was killed may hold readers back, if none with its transactional id follows."""


ABORTED_SHARE = 0.05


class Whim(Exception):
    """A transaction is aborted."""


async def work(options: argparse.Namespace) -> None:
    """Copy until an error."""
    consumer = Consumer(
        options.address,
        topics=[options.topic],
        group=options.group,
        session_timeout_ms=options.session_timeout_ms,
        commit="manual",
        isolation="read_committed",
        start="earliest",
        max_wait_ms=100,
        unavailable_timeout_ms=GIVE_UP_MS,
    )
    producer = Producer(
        options.address,
        transactional_id=options.transactional_id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        linger_ms=1,
    )
    luck = Random()
    async with producer, consumer:
        ways = Ways(consumer, luck)
        while True:
            try:
                async with producer.transaction() as transaction:
                    for _ in range(luck.randint(1, 3)):
                        for partition, value in await ways.read():
                            producer.send(options.output, value, partition=partition)
                        await transaction.commit_offsets(consumer)
                        for partition, value in await ways.read():
                            producer.send(options.output, value, partition=partition)
                    await transaction.commit_offsets(consumer)
                    if luck.random() < ABORTED_SHARE:
                        raise Whim
            except (StaleMemberEpoch, Whim):
                await consumer.seek_to_committed()


async def run(options: argparse.Namespace) -> None:
    """Copy, and begin again after an error."""
    journal = Journal(options.journal)
    while True:
        try:
            await work(options)
        except WarmlogError as error:
            journal.note("failed", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(0.1)


def main() -> None:
    """Work until killed."""
    parser = argparse.ArgumentParser()
    for name in ("address", "group", "topic", "journal", "output", "transactional_id"):
        parser.add_argument(name)
    parser.add_argument("--session-timeout-ms", type=int)
    logging.getLogger("warmlog").setLevel(logging.CRITICAL)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
