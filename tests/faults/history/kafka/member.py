"""One member of a classic group of aiokafka's, in a process: `python -m faults.history.kafka.member`.

Its journal is that of `faults.history.member`.
"""

import argparse
import asyncio
import logging
from collections.abc import Collection
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalGenerationError, IllegalStateError, KafkaError

from faults.history.kafka.writers import RETRY_S, started
from faults.history.member import Journal, parsed_options

REBALANCE_TIMEOUT_MS = 5000


class Member(AIOKafkaConsumer):  # type: ignore[misc]
    """A consumer that commits only in the generation in which it was assigned its partitions.

    aiokafka sends a commit, and repeats it, in the generation that it has joined by then, whose assignment it may not
    know yet, or after the loss of its membership as if from outside the group, which may be empty and accept that.
    """

    assigned_in = -1

    @property
    def is_current(self) -> bool:
        return 0 <= self._coordinator.generation == self.assigned_in

    async def start(self) -> None:
        await super().start()
        send = self._coordinator._do_commit_offsets

        async def send_if_current(*arguments: Any) -> None:
            if not self.is_current:
                raise IllegalGenerationError
            await send(*arguments)

        self._coordinator._do_commit_offsets = send_if_current


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes what the member is given, and what is taken from it, or was already."""

    def __init__(self, journal: Journal, member: Member) -> None:
        self._journal = journal
        self._member = member

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        event = "revoked" if self._member.is_current else "lost"
        self._journal.note(event, partitions=[each.partition for each in revoked])

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._member.assigned_in = self._member._coordinator.generation
        self._journal.note("assigned", partitions=[each.partition for each in assigned])


def member_of(options: argparse.Namespace, journal: Journal) -> Member:
    """Return the member, which has not started yet."""
    member = Member(
        bootstrap_servers=options.address,
        group_id=options.group,
        group_instance_id=options.instance_id,
        session_timeout_ms=options.session_timeout_ms,
        heartbeat_interval_ms=options.session_timeout_ms // 4,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    member.subscribe([options.topic], listener=Listener(journal, member))
    return member


async def work(options: argparse.Namespace, journal: Journal) -> None:
    """Join, handle and commit until an error."""
    consumer = member_of(options, journal)
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
