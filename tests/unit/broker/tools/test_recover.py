"""Which logs count, and what the keys of a cluster become, when its etcd is lost."""

from pathlib import Path

import msgspec
import pytest

from fake_coordination import FakeCoordination
from warmlog_broker.cluster.copy_of_etcd import CopyOfEtcd
from warmlog_broker.cluster.keys import ClusterValue, Keys, NodeValue, OrderValue, TopicValue, Value, to_bytes
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.view import View
from warmlog_broker.etcd.coordination import Put
from warmlog_broker.replication import record as records
from warmlog_broker.replication.membership import Mark, NodeMarks
from warmlog_broker.replication.record import PartitionRecord
from warmlog_broker.storage.segment.segment_files import LOG_KIND, segment_file_name
from warmlog_broker.tools.cluster.recover import SKIPPED_EPOCHS, LogEnd, Recovery, Source, end_of, plan, rebuild
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.batch.header import placement_prefix, read_header
from warmlog_protocol.errors import InvalidRequest

KEYS = Keys("c")
TOPIC = bytes(16)
KEY = PartitionKey(TOPIC, 0)
RECORD = PartitionRecord(leader=2, leader_epoch=7, replicas=(1, 2, 3), isr=(2, 3), min_isr=2)


def source(node: int, end: LogEnd | None, record: PartitionRecord = RECORD, **changed: int) -> Source:
    """A broker with one log, or none, whose copy of etcd is of the revision and generation given."""
    generation, revision = changed.get("generation", 0), changed.get("revision", 50)
    values: dict[str, Value] = {
        KEYS.cluster: ClusterValue(created_ms=1, generation=generation),
        KEYS.topic("t"): TopicValue(id=TOPIC.hex(), partitions=1, replication_factor=3, settings={}),
        KEYS.node(node): NodeValue(incarnation=1, beat=1, directories=["d"]),
        KEYS.order(TOPIC, 0): OrderValue(leader=3),
    }
    items = {key: msgspec.Raw(to_bytes(value)) for key, value in values.items()}
    items[KEYS.partition(*KEY)] = msgspec.Raw(records.to_bytes(record))
    marks = NodeMarks(Mark(1, 1), Mark(1, 1), revision, generation)
    logs = {} if end is None else {f"{TOPIC.hex()}/0": end}
    return Source(node, marks, CopyOfEtcd(1, "c", node, generation, revision, items), logs, [])


def planned(*sources: Source) -> Recovery:
    return plan(sources, View(None, KEYS, -1))


def test_those_with_the_latest_epoch_and_the_greatest_end_are_in_sync_in_an_epoch_that_nobody_had() -> None:
    found = planned(source(1, LogEnd(6, 900)), source(2, LogEnd(7, 80)), source(3, LogEnd(7, 80)))
    after = found.records[KEY]
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2, 3), 7 + SKIPPED_EPOCHS)
    assert (after.replicas, after.recovering, found.missing) == ((1, 2, 3), "", [])
    found = planned(source(1, LogEnd(9, 81)), source(2, LogEnd(7, 80)), source(3, LogEnd(7, 80)))
    after = found.records[KEY]
    assert (after.leader, after.isr, after.leader_epoch) == (1, (1,), 9 + SKIPPED_EPOCHS), "the copies are old"


@pytest.mark.parametrize(
    ("ends", "missing"),
    [
        ({1: LogEnd(7, 80), 2: LogEnd(7, 80)}, None),
        ({1: LogEnd(7, 80), 2: None}, [2, 3]),
        ({1: None}, [1, 2, 3]),
    ],
)
def test_records_may_be_lost_if_as_many_were_not_asked_as_commit_a_record(
    ends: dict[int, LogEnd | None], missing: list[int] | None
) -> None:
    found = planned(*(source(node, end) for node, end in ends.items()))
    assert [nodes for *_, nodes in found.missing] == ([] if missing is None else [missing])
    after = found.records[KEY]
    if any(ends.values()):
        assert bool(after.recovering) is (missing is not None), "then others may have to cut what was committed"
    else:
        assert (after.leader, after.isr, after.recovering) == (2, (2, 3), ""), "one of them may come"


def test_the_newest_copy_counts_by_its_generation_and_then_its_revision() -> None:
    older, newer = RECORD, msgspec.structs.replace(RECORD, replicas=(1, 3, 2))
    assert planned(source(1, None, older), source(2, None, newer, revision=60)).records[KEY].replicas == (1, 3, 2)
    found = planned(source(1, None, older, revision=900), source(2, None, newer, generation=1, revision=3))
    assert found.records[KEY].replicas == (1, 3, 2)
    assert found.generation == 2


async def test_all_keys_are_replaced_but_orders_and_registrations_and_the_clusters_own_comes_last() -> None:
    etcd = FakeCoordination()
    await etcd.txn([], [Put(KEYS.topic("old"), to_bytes(ClusterValue(created_ms=1)))])
    found = source(1, LogEnd(7, 80))
    etcd.lose_outcomes = 1
    await rebuild(etcd, View(etcd, KEYS, -1), plan([found], View(etcd, KEYS, -1)))
    now = View(etcd, KEYS, -1)
    await now.read()
    kinds = {KEYS.parts(key)[0] for key in now.items}
    assert kinds == {"cluster", "nodes", "topics", "partitions", "producer_ids"}
    assert [*now.state.topics] == ["t"]
    assert now.generation == 1
    assert now.changed_at(KEYS.cluster) == now.revision
    assert plan([found], now).generation == 2, "once more, while no broker has started"
    with pytest.raises(InvalidRequest, match="nothing to recover"):
        plan([source(1, None, generation=1, revision=now.revision)], now)


def test_brokers_of_another_cluster_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="brokers of c: not all are of the cluster d"):
        plan([source(1, None)], View(None, Keys("d"), -1))


def batches(*offsets: int) -> bytes:
    plain = encode_batch([b"x" * 50], timestamps_ms=[1])
    prefixes = [placement_prefix(read_header(plain), offset, 3) for offset in offsets]
    return b"".join(prefix + plain[len(prefix) :] for prefix in prefixes)


def test_the_end_of_a_log_is_where_a_start_ends_it(tmp_path: Path) -> None:
    one = len(batches(0))
    first, last = (tmp_path / segment_file_name(base, LOG_KIND) for base in (0, 5))
    first.write_bytes(batches(*range(5)))
    last.write_bytes(batches(*range(5, 10)) + bytes(4096))
    assert end_of(tmp_path, 0) == end_of(tmp_path, 7) == LogEnd(3, 10), "what is preallocated is nothing"
    damaged = bytearray(batches(*range(5, 10)))
    damaged[2 * one - 1] ^= 1  # in the batch of offset 6
    last.write_bytes(damaged)
    assert end_of(tmp_path, 6) == LogEnd(3, 6), "above the recovery point it is cut there"
    assert end_of(tmp_path, 10) == LogEnd(3, 10), "below it nothing is cut"
    last.write_bytes(b"")
    assert end_of(tmp_path, 5) == LogEnd(3, 5)
    first.write_bytes(b"")
    assert end_of(tmp_path, 5) == LogEnd(-1, 5)


def test_what_is_known_of_etcd_is_the_later_of_copy_and_marks() -> None:
    marks, copy = NodeMarks(Mark(1, 1), Mark(1, 1), 50, 1), source(1, None, generation=1, revision=60).copy
    assert copy.marks(marks) == msgspec.structs.replace(marks, revision=60)
    assert copy.marks(msgspec.structs.replace(marks, generation=2, revision=5)).revision == 5
