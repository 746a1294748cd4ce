"""A watcher of a topic is told which partitions the broker leads: at starts, moves, failures and deletions."""

import asyncio
from pathlib import Path
from typing import cast

from broker_thread import BrokerThread
from warmlog_broker import Broker
from warmlog_broker.replica.partition import Partition
from warmlog_protocol.messages import DeleteTopicsRequest, DeleteTopicsResponse
from wire_client import WireClient, batch_of


class Watcher:
    """Notes what it is told, as (event, partition, leader epoch)."""

    def __init__(self, broker: BrokerThread) -> None:
        self._broker = broker
        self._told: list[tuple[str, int, int]] = []
        broker.in_loop(lambda it: it.topics.watch("t", self))

    def loaded(self, partition: Partition) -> None:
        self._told.append(("loaded", partition.key.partition, partition.leader_epoch))

    def unloaded(self, partition: Partition) -> None:
        self._told.append(("unloaded", partition.key.partition, partition.leader_epoch))

    def told(self) -> list[tuple[str, int, int]]:
        """What it was told since the last call."""

        def take(_: Broker) -> list[tuple[str, int, int]]:
            told, self._told = self._told, []
            return told

        return self._broker.in_loop(take)


async def move(broker: Broker, to: Path) -> None:
    await broker.services.moves.request("t", 0, to)
    directory = broker.services.directories.get(to)
    assert directory is not None
    await asyncio.wait([under_way.task for under_way in broker.services.moves.into(directory)])
    assert broker.topics.partition("t", 0) in directory.partitions


def test_a_watcher_is_told_of_what_this_broker_leads_all_its_life(tmp_path: Path) -> None:
    paths = tmp_path / "first", tmp_path / "second"
    with BrokerThread(*paths) as broker, WireClient(broker.address) as client:
        watcher = Watcher(broker)
        assert watcher.told() == []
        client.create_topic("t", 2)
        assert watcher.told() == [("loaded", 0, 0), ("loaded", 1, 0)]
        client.produce("t", batch_of([b"a"]))
        broker.run(move(broker.broker, paths[1]))
        assert watcher.told() == [], "it leads the partition before, during and after the move"
        broker.in_loop(lambda it: it.topics.partition("t", 1).take_offline("its disk has failed"))
        assert watcher.told() == [("unloaded", 1, 0)]
    with BrokerThread(*paths) as broker, WireClient(broker.address) as client:
        watcher = Watcher(broker)
        assert watcher.told() == [("loaded", 0, 0), ("loaded", 1, 1)], "the stop could not close the log of 1"
        broker.in_loop(lambda it: it.topics.partition("t", 1).take_offline("its disk has failed"))
        assert watcher.told() == [("unloaded", 1, 1)]
        (deleted,) = cast("DeleteTopicsResponse", client.call(DeleteTopicsRequest(["t"]))).topics
        assert deleted.error_code == 0
        assert watcher.told() == [("unloaded", 0, 0)]


def test_a_watcher_hears_nothing_of_a_partition_that_the_start_could_not_open(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client:
        client.create_topic("t", 2)
    (tmp_path / "t-0").rename(tmp_path / "away")
    with BrokerThread(tmp_path) as broker:
        watcher = Watcher(broker)
        assert watcher.told() == [("loaded", 1, 0)]


def test_a_directory_that_fails_takes_its_partitions_from_the_watcher(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "first", tmp_path / "second") as broker, WireClient(broker.address) as client:
        client.create_topic("t", 4)
        watcher = Watcher(broker)
        lost = broker.in_loop(lambda it: [each.key.partition for each in it.services.directories.served[1].partitions])
        watcher.told()
        broker.in_loop(lambda it: it.services.directories.served[1].fail("its disk is gone"))
        assert watcher.told() == [("unloaded", number, 0) for number in lost]
        broker.in_loop(lambda it: it.services.directories.served[0].fail("read-only", is_read_only=True))
        assert sorted(watcher.told()) == [("unloaded", number, 0) for number in range(4) if number not in lost]
