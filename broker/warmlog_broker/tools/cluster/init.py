"""Creates a cluster in etcd."""

import random

from warmlog_broker.cluster.keys import ClusterValue, Keys, to_bytes
from warmlog_broker.cluster.settling import settled
from warmlog_broker.etcd.coordination import ChangedAt, Coordination, Failed, Put
from warmlog_broker.replication.record import Author
from warmlog_broker.runtime.clock import now_ms
from warmlog_protocol.errors import DuplicateResource

TIMEOUT_S = 20.0


async def create_cluster(etcd: Coordination, cluster_id: str) -> None:
    """Create an empty cluster. DuplicateResource if there is one of this name, RequestTimedOut, Refused."""
    keys, by = Keys(cluster_id), Author(-1, 0, random.getrandbits(52))
    put = Put(keys.cluster, to_bytes(ClusterValue(by=by, created_ms=now_ms())))
    done = await settled(etcd, by, [ChangedAt(keys.cluster, 0)], [put], timeout_s=TIMEOUT_S)
    if isinstance(done, Failed):
        raise DuplicateResource(f"etcd has a cluster {cluster_id!r}")
