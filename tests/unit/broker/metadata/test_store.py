"""The facts of a cluster and of a broker: committed in groups, and refused if what they are about has changed."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warmlog_broker.metadata import store
from warmlog_broker.metadata.log_file import MetadataLog, read_state
from warmlog_broker.metadata.metadata_log import (
    DirectoryKnown,
    PartitionsAdded,
    ProducerIdsReserved,
    QuotaAltered,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
)
from warmlog_broker.metadata.store import Changed, LoneClusterStore, NodeStore, ProducerIds, retried

ONE = TopicCreated("a.b", bytes([1]) * 16, 3, {})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LoneClusterStore]:
    log, _ = MetadataLog.open(tmp_path)
    with ThreadPoolExecutor(1) as threads:
        node = NodeStore(log, threads)
        yield LoneClusterStore(node)
        await node.close()


async def test_a_change_of_what_was_changed_since_it_was_read_is_refused(cluster: LoneClusterStore) -> None:
    read = cluster.version
    await cluster.commit([ONE], expected=read)
    late = [
        TopicCreated("a_b", bytes([2]) * 16, 3, {}),
        TopicAltered(ONE.topic_id, ONE.name, {"retention.ms": "1"}),
        TopicDeleted(ONE.topic_id, ONE.name, 3),
    ]
    for change in late:
        with pytest.raises(Changed):
            await cluster.commit([QuotaAltered("u", None, {"connections": 1}), change], expected=read)
    assert (list(cluster.state.topics.values()), cluster.state.quotas) == ([ONE], {})
    await cluster.commit([PartitionsAdded(ONE.topic_id, ONE.name, 5)], expected=cluster.version)
    assert cluster.state.topics["a.b"].partitions == 5


async def test_changes_of_other_things_do_not_refuse_a_change(cluster: LoneClusterStore) -> None:
    read = cluster.version
    await cluster.commit([ONE, ProducerIdsReserved(1000)])
    await cluster.commit([QuotaAltered("u", None, {"connections": 1})])
    await cluster.commit([TopicCreated("c", bytes([3]) * 16, 3, {})], expected=read)
    assert list(cluster.state.topics) == ["a.b", "c"]


async def test_a_refused_attempt_is_made_again_with_what_is_there_then(cluster: LoneClusterStore) -> None:
    async def add_one(_version: int) -> None:
        limits = cluster.state.quotas.get(("u", None), {"connections": 0})
        changed = QuotaAltered("u", None, {"connections": limits["connections"] + 1})
        await asyncio.sleep(0)
        await cluster.commit([changed], expected=_version)

    await asyncio.gather(*(retried(cluster, add_one) for _ in range(10)))
    assert cluster.state.quotas == {("u", None): {"connections": 10}}


async def test_what_is_no_longer_remembered_counts_as_changed(
    cluster: LoneClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "REMEMBERED_SUBJECTS", 2)
    read = cluster.version
    for name in ("u", "v", "w"):
        await cluster.commit([QuotaAltered(name, None, {"connections": 1})])
    with pytest.raises(Changed):
        await cluster.commit([QuotaAltered("u", None, {})], expected=read)
    await cluster.commit([QuotaAltered("u", None, {})], expected=cluster.version)
    assert ("u", None) not in cluster.state.quotas


async def test_facts_of_the_node_are_written_with_those_of_the_cluster(tmp_path: Path) -> None:
    log, _ = MetadataLog.open(tmp_path)
    with ThreadPoolExecutor(1) as threads:
        node = NodeStore(log, threads)
        node.note(DirectoryKnown(bytes(16), "/data"))
        await LoneClusterStore(node).commit([ONE])
        stored = read_state(log.path)
        await node.close()
    assert (stored.directories, list(stored.topics)) == ({bytes(16): "/data"}, ["a.b"])


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BLOCK_IDS", 3)


@pytest.mark.usefixtures("small_blocks")
async def test_ids_are_given_out_one_after_another(cluster: LoneClusterStore) -> None:
    ids = ProducerIds(cluster)
    assert [await ids.give_out() for _ in range(7)] == list(range(7))
    assert ids.known_below == 7


@pytest.mark.usefixtures("small_blocks")
async def test_those_who_ask_at_once_get_different_ids(cluster: LoneClusterStore) -> None:
    ids = ProducerIds(cluster)
    given = await asyncio.gather(*(ids.give_out() for _ in range(20)))
    assert sorted(given) == list(range(20))


@pytest.mark.usefixtures("small_blocks")
async def test_a_block_is_reserved_on_disk_before_its_first_id_is_given_out(
    cluster: LoneClusterStore, tmp_path: Path
) -> None:
    ids = ProducerIds(cluster)
    for _ in range(7):
        producer_id = await ids.give_out()
        stored, _ = MetadataLog.open(tmp_path)
        assert stored.state.next_producer_id > producer_id
        stored.close()


@pytest.mark.usefixtures("small_blocks")
async def test_after_a_crash_the_rest_of_a_block_is_not_used(cluster: LoneClusterStore) -> None:
    first = ProducerIds(cluster)
    before = [await first.give_out() for _ in range(4)]
    again = ProducerIds(cluster)
    assert await again.give_out() == 6
    assert before == [0, 1, 2, 3]
