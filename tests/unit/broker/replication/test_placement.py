"""Where the replicas of new topics go."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.replication.placement import grown, place
from warmlog_broker.replication.record import PartitionRecord
from warmlog_protocol.errors import InvalidReplicationFactor

CLUSTERS = st.dictionaries(st.integers(1, 20), st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=9)


@given(CLUSTERS, st.integers(1, 9), st.integers(1, 30), st.integers(0, 50))
def test_replicas_are_apart_and_spread(racks: dict[int, str], factor: int, partitions: int, first: int) -> None:
    factor = min(factor, len(racks))
    placed = place(racks, partitions=partitions, factor=factor, first=first)
    rack_count = len({rack or f"own {node}" for node, rack in racks.items()})
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({racks[node] or f"own {node}" for node in replicas}) == min(factor, rack_count)
    leaders = Counter(replicas[0] for replicas in placed)
    counts = [leaders[node] for node in racks]
    assert max(counts) - min(counts) <= 1


def test_three_brokers_have_as_many_replicas_each() -> None:
    placed = place({1: "", 2: "", 3: ""}, partitions=12, factor=2)
    assert Counter(node for replicas in placed for node in replicas) == {1: 8, 2: 8, 3: 8}


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(InvalidReplicationFactor):
        place({1: "", 2: ""}, partitions=1, factor=3)


def test_replicas_are_added_in_other_racks_and_where_the_fewest_are() -> None:
    record = PartitionRecord(leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    assert grown(record, racks, 2, {3: 5, 4: 2}) == (1, 4)
    assert grown(record, racks, 3, {3: 5, 4: 2}) == (1, 4, 2)
    assert grown(record, racks, 9, {}) == (1, 3, 2, 4)
    assert grown(record, {}, 3, {}) == (1,), "no broker is ready"
