"""Copies some partitions exactly once with transactions of version 1: `python -m faults.history.kafka.copier`.

aiokafka does not say which member of a group has read what a transaction commits. So each process has its partitions,
and its successor has its transactional id: that ends what it has left open before it reads where to go on.
"""

import argparse
import asyncio
import logging
from collections.abc import Mapping
from random import Random
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from faults.history.kafka.writers import RETRY_S, TIMEOUT_MS, started
from faults.history.member import Journal
from faults.history.transactional.notes import GivenUpError

ABORTED_SHARE = 0.05
MAX_RECORDS = 50


async def work(options: argparse.Namespace) -> None:
    """Copy until an error."""
    producer = AIOKafkaProducer(
        bootstrap_servers=options.address,
        transactional_id=options.transactional_id,
        transaction_timeout_ms=TIMEOUT_MS,
        linger_ms=1,
    )
    luck = Random()
    async with started(producer):
        consumer = AIOKafkaConsumer(
            bootstrap_servers=options.address,
            group_id=options.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        async with started(consumer):
            consumer.assign([TopicPartition(options.topic, number) for number in options.partitions])
            while True:
                read = await consumer.getmany(timeout_ms=200, max_records=MAX_RECORDS)
                try:
                    if read:
                        await _copy(options, producer, read, is_aborted=luck.random() < ABORTED_SHARE)
                except GivenUpError:
                    for partition, records in read.items():
                        consumer.seek(partition, records[0].offset)


async def _copy(options: argparse.Namespace, producer: Any, read: Mapping[Any, Any], *, is_aborted: bool) -> None:
    """Copy what was read in one transaction; GivenUpError if that is aborted."""
    async with producer.transaction():
        sent = [
            await producer.send(options.output, record.value, partition=partition.partition)
            for partition, records in read.items()
            for record in records
        ]
        await asyncio.gather(*sent)  # else aiokafka commits a transaction of which a batch has failed
        offsets = {partition: records[-1].offset + 1 for partition, records in read.items()}
        await producer.send_offsets_to_transaction(offsets, options.group)
        if is_aborted:
            raise GivenUpError


async def run(options: argparse.Namespace) -> None:
    """Copy, and begin again after an error."""
    journal = Journal(options.journal)
    while True:
        try:
            await work(options)
        except KafkaError as error:
            journal.note("failed", error=repr(error))
            await asyncio.sleep(RETRY_S)


def main() -> None:
    """Work until killed."""
    parser = argparse.ArgumentParser()
    for name in ("address", "group", "topic", "journal", "output", "transactional_id"):
        parser.add_argument(name)
    parser.add_argument("partitions", type=int, nargs="+")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
