"""What a starting broker says of its replicas in their records."""

import asyncio
from uuid import UUID

from msgspec.structs import replace

from fake_coordination import FakeCoordination
from warmlog_broker.cluster.keys import Keys
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.start import Replica, change_records
from warmlog_broker.cluster.store import KEYS_A_TRANSACTION
from warmlog_broker.cluster.view import View
from warmlog_broker.etcd.coordination import Put
from warmlog_broker.replication.record import NO_LEADER, PartitionRecord, to_bytes
from warmlog_broker.storage.directory.topic_partition import TopicPartition

KEYS, TOPIC, COUNT = Keys("test"), UUID(int=7).bytes, 2 * KEYS_A_TRANSACTION + 10
LED = PartitionRecord(leader=1, leader_epoch=3, replicas=(1, 2, 3), isr=(1, 2, 3), min_isr=2)


async def test_a_start_gives_up_what_it_led_in_few_transactions_also_if_a_record_has_changed_meanwhile() -> None:
    etcd = FakeCoordination()
    view = View(etcd, KEYS, 1)
    for number in range(COUNT):
        await etcd.txn([], [Put(KEYS.partition(TOPIC, number), to_bytes(LED))])
    await view.read()
    keys = [PartitionKey(TOPIC, number) for number in range(COUNT)]
    found = [Replica(key, TopicPartition("t", key.number), view.records[key], None, False) for key in keys]
    found[5] = replace(found[5], reason="its log is lost")
    await etcd.txn([], [Put(KEYS.partition(TOPIC, 0), to_bytes(replace(LED, isr=(1, 2))))])
    etcd.transactions.clear()
    following = asyncio.create_task(view.follow())
    await change_records(etcd, view, found)
    following.cancel()
    records = [view.records[key].record for key in keys]
    assert all(record.leader == NO_LEADER for record in records)
    assert records[0].isr == (1, 2)
    assert records[5].isr == (2, 3)
    assert {record.isr for record in records[6:]} == {(1, 2, 3)}
    assert len(etcd.transactions) == 1 + KEYS_A_TRANSACTION + 1 + 2, "those of the first part one by one, one twice"
