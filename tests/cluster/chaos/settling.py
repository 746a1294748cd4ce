"""How a cluster comes to rest: every partition has a leader, and all its replicas are in sync.

Of internal topics these are on all brokers: one that was created while others were away is still to get some there.
"""

import asyncio
import contextlib

from cluster_processes import ClusterProcesses
from warmlog.errors import WarmlogError
from warmlog_protocol.messages import MetadataRequest, MetadataResponse
from wire_client import WireClient

SETTLE_S = 180.0
"""It takes no longer after a fault."""


async def settled(cluster: ClusterProcesses) -> list[str]:
    """Wait until every partition has all its replicas in sync; return those that do not."""
    deadline_s = asyncio.get_running_loop().time() + SETTLE_S
    found = ["no broker tells the metadata"]
    while found and asyncio.get_running_loop().time() < deadline_s:
        with contextlib.suppress(WarmlogError, OSError):
            found = await asyncio.to_thread(unsettled, cluster)
        await asyncio.sleep(0.2)
    return found


def unsettled(cluster: ClusterProcesses) -> list[str]:
    """Return the partitions that lack a leader or replicas in sync now."""
    return [
        f"{topic.name}-{each.partition}: leader {each.leader_id}, in sync {each.in_sync_replicas}"
        for topic in metadata(cluster, None).topics
        for each in topic.partitions
        if each.leader_id < 0
        or len(each.in_sync_replicas) < len(cluster.brokers if topic.name.startswith("__") else each.replicas)
    ]


def metadata(cluster: ClusterProcesses, topics: list[str] | None) -> MetadataResponse:
    """What the first broker says of some topics, or of all."""
    with WireClient(next(iter(cluster.brokers.values())).address) as client:
        response = client.call(MetadataRequest(topics, include_internal=True))
        assert isinstance(response, MetadataResponse)
        return response
