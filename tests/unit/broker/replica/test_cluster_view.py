"""Which brokers there are, and who leads a partition."""

from unit.broker.conftest import MakePartition
from warmlog_broker.replica.cluster_view import ClusterView


def test_one_broker_leads_what_it_can_read_in_the_partitions_leader_epoch(make_partition: MakePartition) -> None:
    cluster = ClusterView("c", 7)
    first, second = make_partition(0, leader_epoch=2), make_partition(1, leader_epoch=5)
    assert (cluster.controller_id, cluster.brokers) == (7, [(7, "", 0)])
    assert [cluster.leadership(each) for each in (first, second)] == [(7, 2, [7], [7]), (7, 5, [7], [7])]
    second.set_read_only("its disk takes no writes")
    assert cluster.leadership(second) == (7, 5, [7], [7])
    second.take_offline("its disk has failed")
    assert cluster.leadership(second) == (-1, 5, [7], [])
