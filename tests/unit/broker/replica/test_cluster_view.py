"""Which brokers there are, and who leads a partition."""

from unit.broker.conftest import MakePartition
from warmlog_broker.config.listeners import parse_listeners
from warmlog_broker.replica.cluster_view import ClusterView


def test_a_client_is_told_the_address_of_the_listener_that_it_came_by() -> None:
    listeners = parse_listeners(
        "inside=plaintext://127.0.0.1:1,outside=ssl://10.0.0.1:2", "outside=logs.example.org:7443"
    )
    cluster = ClusterView("c", 7, listeners)
    assert cluster.brokers("outside") == [(7, "logs.example.org", 7443)]
    assert cluster.brokers("inside") == [(7, "", 0)]


def test_one_broker_leads_what_it_can_read_in_the_partitions_leader_epoch(make_partition: MakePartition) -> None:
    cluster = ClusterView("c", 7)
    first, second = make_partition(0, leader_epoch=2), make_partition(1, leader_epoch=5)
    assert (cluster.controller_id, cluster.brokers("default")) == (7, [(7, "", 0)])
    assert [cluster.leadership(each) for each in (first, second)] == [(7, 2, [7], [7]), (7, 5, [7], [7])]
    second.set_read_only("its disk takes no writes")
    assert cluster.leadership(second) == (7, 5, [7], [7])
    second.take_offline("its disk has failed")
    assert cluster.leadership(second) == (-1, 5, [7], [])
