"""One member of a classic group of aiokafka's, in a process: `python -m faults.history.kafka.member`.

Its journal is that of `faults.history.member`.
"""

import argparse
import asyncio
import logging
from collections.abc import Collection

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from faults.history.kafka.writers import RETRY_S, started
from faults.history.member import Journal, parsed_options

REBALANCE_TIMEOUT_MS = 5000


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes what the member is given, and what is taken from it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._journal.note("revoked", partitions=[each.partition for each in revoked])

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._journal.note("assigned", partitions=[each.partition for each in assigned])


async def work(options: argparse.Namespace, journal: Journal) -> None:
    """Join, handle and commit until an error."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=options.address,
        group_id=options.group,
        group_instance_id=options.instance_id,
        session_timeout_ms=options.session_timeout_ms,
        heartbeat_interval_ms=options.session_timeout_ms // 4,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    consumer.subscribe([options.topic], listener=Listener(journal))
    async with started(consumer):
        while True:
            for partition, records in (await consumer.getmany(timeout_ms=200)).items():
                first, last = records[0].offset, records[-1].offset
                place = {"partition": partition.partition, "first": first, "next": last + 1}
                try:
                    journal.note("handled", **place)
                    journal.note("committing", **place)
                    await consumer.commit({partition: place["next"]})
                    journal.note("committed", **place)
                except (CommitFailedError, IllegalStateError):
                    journal.note("lost", partitions=[partition.partition])


async def run(options: argparse.Namespace) -> None:
    """Work, and begin again after an error."""
    journal = Journal(options.journal)
    journal.note("began")
    while True:
        try:
            await work(options, journal)
        except KafkaError as error:
            journal.note("failed", error=repr(error))
            await asyncio.sleep(RETRY_S)


def main() -> None:
    """Work until killed."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    asyncio.run(run(parsed_options()))


if __name__ == "__main__":
    main()
