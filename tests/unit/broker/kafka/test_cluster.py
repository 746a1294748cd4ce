"""What metadata says of replicas."""

import pytest

from warmlog_broker.kafka.cluster import offline_replicas
from warmlog_protocol import messages as m


@pytest.mark.parametrize(
    ("replicas", "in_sync", "offline"),
    [
        ([1, 2, 3], [1, 2, 3], [3]),
        ([1, 2, 3], [], [3]),
        ([1], [1], []),
        ([1], [], [1]),
    ],
)
def test_replicas_that_live_are_not_offline_while_none_is_in_sync(
    replicas: list[int], in_sync: list[int], offline: list[int]
) -> None:
    assert offline_replicas(m.PartitionMetadata(0, 0, -1, 5, replicas, in_sync), {1, 2}) == offline
