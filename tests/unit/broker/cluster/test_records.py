"""The records of partitions, over an etcd in memory."""

import pytest

from fake_coordination import FakeCoordination
from warmlog_broker.cluster.keys import Keys
from warmlog_broker.cluster.records import PartitionKey, Records
from warmlog_broker.etcd.coordination import Put
from warmlog_broker.replication.events import Outcome, Write
from warmlog_broker.replication.record import PartitionRecord, to_bytes

KEYS = Keys("test")
READABLE, NEWER = PartitionKey(b"\x01" * 16, 0), PartitionKey(b"\x02" * 16, 0)
RECORD = PartitionRecord(leader=1, leader_epoch=1, replicas=(1,), isr=(1,))


async def test_a_record_that_cannot_be_read_is_named_and_keeps_no_other_from_being_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    etcd = FakeCoordination()
    records = Records(etcd, KEYS)
    await etcd.txn([], [Put(KEYS.partition(*READABLE), to_bytes(RECORD)), Put(KEYS.partition(*NEWER), b'{"v":2}')])
    found = await records.read()
    assert {key: seen.record for key, seen in found.items()} == {READABLE: RECORD}
    assert f"{KEYS.partition(*NEWER)} in etcd: a partition record of version 2" in caplog.text
    written = await records.write(NEWER, Write(1, RECORD, 0, {}))
    assert written.outcome is Outcome.UNKNOWN
    assert (await records.write(READABLE, Write(2, RECORD, 0, {}))).record == RECORD
    await records.read()
    assert len(caplog.records) == 1, "although it was read three times"
    await etcd.txn([], [Put(KEYS.partition(*NEWER), b'{"v":3}')])
    await records.read()
    assert "a partition record of version 3" in caplog.text
