"""A member of aiokafka's in the histories commits as the member that was assigned the partition, or not at all."""

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError

from broker_process import BrokerProcess, port_to_keep
from faults.history.kafka.member import Member, member_of
from faults.history.kafka.writers import started
from faults.history.member import Journal
from kafka_member import KafkaMember
from waiting import until
from warmlog import Admin


@pytest.fixture
def kafka_address() -> str:
    return f"127.0.0.1:{port_to_keep()}"


@pytest.fixture
def broker(tmp_path: Path, kafka_address: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", kafka_listen=kafka_address, group_initial_rebalance_delay_ms=0) as broker:
        yield broker


def member(kafka_address: str, journal: Path) -> Member:
    options = argparse.Namespace(address=kafka_address, group="g", topic="t", instance_id=None, session_timeout_ms=6000)
    return member_of(options, Journal(str(journal)))


@contextmanager
def held(member: Member, step: str) -> Iterator[None]:
    """Hold the member before this step of its next rebalance."""
    original, goes_on = getattr(member._coordinator, step), asyncio.Event()

    async def hold(*arguments: Any) -> Any:
        await goes_on.wait()
        return await original(*arguments)

    setattr(member._coordinator, step, hold)
    try:
        yield
    finally:
        goes_on.set()


async def test_it_commits_nothing_of_its_assignment_before_in_a_generation_whose_assignment_it_does_not_know_yet(
    tmp_path: Path, broker: BrokerProcess, kafka_address: str
) -> None:
    async with Admin(broker.address) as admin:
        await admin.create_topic("t", partitions=2)
        first, second = (member(kafka_address, tmp_path / name) for name in ("first", "second"))
        async with started(first):
            await first.commit({TopicPartition("t", 0): 3})
            with held(first, "_on_join_complete"):
                async with started(second):
                    [taken] = second.assignment()
                    assert taken in first.assignment()
                    with pytest.raises(CommitFailedError):
                        await first.commit({taken: 7})
        assert [at.offset for at in (await admin.committed_offsets("g")).values()] == [3]


async def test_it_commits_nothing_after_the_loss_of_its_membership_which_it_notes(
    tmp_path: Path, broker: BrokerProcess, kafka_address: str
) -> None:
    async with Admin(broker.address) as admin:
        await admin.create_topic("t", partitions=2)
        journal = tmp_path / "journal"
        only = member(kafka_address, journal)
        async with started(only):
            with held(only, "_do_rejoin_group"):
                with KafkaMember(kafka_address, "g") as itself:
                    itself.member_id = only._coordinator.member_id
                    itself.leave()
                await until(lambda: '"lost"' in journal.read_text().splitlines()[-1])
                with pytest.raises(CommitFailedError):
                    await only.commit({TopicPartition("t", 0): 7})
        assert await admin.committed_offsets("g") == {}
