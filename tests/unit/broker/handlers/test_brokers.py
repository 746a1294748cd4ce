"""What brokers ask of one another about transactions, when it comes late."""

from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from present import present
from unit.broker.cluster.test_peers import context_of, introduce
from warmlog_broker.cluster.data_path.peers import Identity
from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.group.decisions import offsets
from warmlog_broker.coordinator.group.decisions.records import OffsetValue
from warmlog_broker.coordinator.group.decisions.state import Groups, Limits
from warmlog_broker.handlers import brokers
from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request import RequestContext
from warmlog_protocol import messages as m
from warmlog_protocol.errors import NotLeaderOrFollower, TransactionCoordinatorFenced

GROUP, PRODUCER, EPOCH = "g", 7, 3
PLACE = PartitionId(b"t" * 16, 0)
ADD = m.AddPendingOffsetsRequest(m.OffsetCommitRequest(GROUP, []), "p", PRODUCER, EPOCH, 1)
END = m.EndPendingOffsetsRequest(GROUP, PRODUCER, EPOCH, True, True, 1)


class PendingGroups:
    """The groups of this broker: an added request is one of the offset that is `next`."""

    def __init__(self) -> None:
        self.groups = Groups()
        self.next = 0

    async def add_pending(self, request: m.AddPendingOffsetsRequest, _check: object) -> m.OffsetCommitResponse:
        value = OffsetValue(self.next, -1, "", "t", 0)
        records = offsets.add_pending(
            self.groups,
            request.commit.group,
            request.producer_id,
            request.producer_epoch,
            {PLACE: value},
            coordinator_epoch=request.coordinator_epoch,
            now_ms=0,
            limits=Limits(),
        )
        for record in records:
            self.groups.replay(record)
        return m.OffsetCommitResponse([])

    async def end_pending(self, request: m.EndPendingOffsetsRequest) -> None:
        kind = {name: getattr(request, name) for name in ("commits", "keeps_epoch", "coordinator_epoch")}
        producer = request.producer_id, request.producer_epoch
        for record in offsets.end_pending(self.groups, request.group, *producer, now_ms=0, **kind).records:
            self.groups.replay(record)

    @property
    def committed(self) -> int:
        return present(self.groups.get(GROUP)).offsets[PLACE].offset


@pytest.fixture
def groups() -> PendingGroups:
    return PendingGroups()


@pytest.fixture
def services(groups: PendingGroups) -> Services:
    identity = Identity("c", 3, "s3cret")
    services = SimpleNamespace(
        between_brokers=SimpleNamespace(identity=identity), coordinators=SimpleNamespace(groups=groups)
    )
    return cast("Services", services)


async def connected(services: Services, node: int, connection: int) -> RequestContext:
    identity = present(services.between_brokers).identity
    return await introduce(Identity("c", node, "s3cret"), identity, replace(context_of(), connection=connection), to=3)


async def test_offsets_of_an_open_transaction_are_not_committed_by_a_late_end_of_the_broker_that_coordinated_it(
    services: Services, groups: PendingGroups
) -> None:
    """Both transactions are of version 1: they have the same epoch."""
    earlier, now = await connected(services, 1, 7), await connected(services, 2, 9)
    groups.next = 5
    await brokers.add_pending_offsets(services, earlier, ADD)
    await brokers.end_pending_offsets(services, now, replace(END, coordinator_epoch=2))
    groups.next = 9
    await brokers.add_pending_offsets(services, now, replace(ADD, coordinator_epoch=2))
    with pytest.raises(TransactionCoordinatorFenced):
        await brokers.end_pending_offsets(services, earlier, END)
    with pytest.raises(TransactionCoordinatorFenced):
        await brokers.add_pending_offsets(services, earlier, ADD)
    assert groups.committed == 5
    await brokers.end_pending_offsets(services, now, replace(END, commits=False, coordinator_epoch=2))
    assert groups.committed == 5


async def test_offsets_that_come_by_an_earlier_connection_of_a_broker_are_late(services: Services) -> None:
    earlier = await connected(services, 1, 7)
    await connected(services, 1, 9)
    commit = m.TxnOffsetCommitRequest("etl", PRODUCER, EPOCH, GROUP, [])
    with pytest.raises(NotLeaderOrFollower, match="this request is late"):
        await brokers.commit_offsets_elsewhere(services, earlier, m.CommitOffsetsElsewhereRequest(commit, "p"))
    with pytest.raises(NotLeaderOrFollower, match="this request is late"):
        await brokers.add_pending_offsets(services, earlier, ADD)
    with pytest.raises(NotLeaderOrFollower, match="this request is late"):
        await brokers.end_pending_offsets(services, earlier, END)
