"""A transactional producer of a few lines: each request is a call, so that a test decides about every step."""

import time
from typing import Self, cast

from waiting import wait_until
from warmlog_protocol import messages as m
from warmlog_protocol.batch import iter_batches
from warmlog_protocol.errors import CoordinatorLoadInProgress, error_from_code
from wire_client import WireClient, batch_of


class TransactionalClient:
    """One incarnation of the producer of a transactional id, with a connection of its own."""

    def __init__(self, address: str, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self.client = WireClient(address)
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer = (-1, -1)
        self._sequences: dict[tuple[str, int], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def initialise(self) -> Self:
        request = m.InitProducerIdRequest(self.transactional_id, self.timeout_ms, *self.producer)
        response = cast("m.InitProducerIdResponse", self.client.call(request))
        self._go_on(response.producer_id, response.producer_epoch)
        return self

    def send(self, topic: str, *values: bytes, partition: int = 0) -> int:
        """Append one batch; return its first offset."""
        place = topic, partition
        sequence = self._sequences.get(place, 0)
        batch = batch_of(
            values,
            timestamp_ms=time.time_ns() // 1_000_000,
            producer=self.producer,
            base_sequence=sequence,
            is_transactional=True,
        )
        request = m.ProduceRequest(
            m.ACKS_ALL, 10_000, [m.ProducePartition(topic, partition, len(batch))], self.transactional_id
        )
        response, _ = self.client.receive(self.client.send(request, batch))
        (result,) = cast("m.ProduceResponse", response).partitions
        if result.error_code:
            raise error_from_code(result.error_code, result.error_message)
        self._sequences[place] = sequence + len(values)
        return result.base_offset

    def commit_offset(self, group: str, topic: str, offset: int, partition: int = 0, **member: object) -> None:
        request = m.TxnOffsetCommitRequest(
            self.transactional_id,
            *self.producer,
            group,
            [m.OffsetCommitPartition(b"", topic, partition, offset)],
            **member,  # type: ignore[arg-type]
        )
        (result,) = cast("m.OffsetCommitResponse", self.client.call(request)).partitions
        if result.error_code:
            raise error_from_code(result.error_code, result.error_message)

    def commit(self) -> None:
        self.end(commits=True)

    def abort(self) -> None:
        self.end(commits=False)

    def end(self, *, commits: bool) -> None:
        response = self.client.call(m.EndTransactionRequest(self.transactional_id, *self.producer, commits))
        ended = cast("m.EndTransactionResponse", response)
        self._go_on(ended.producer_id, ended.producer_epoch)

    def _go_on(self, producer_id: int, epoch: int) -> None:
        self.producer = producer_id, epoch
        self._sequences.clear()


class JobMemberClient(TransactionalClient):
    """One member of a job, with a connection of its own."""

    def __init__(self, address: str, transactional_id: str, version: int, *, timeout_ms: int = 60_000) -> None:
        super().__init__(address, transactional_id, timeout_ms=timeout_ms)
        self.version = version

    @property
    def member(self) -> m.JobMember:
        return m.JobMember(*self.producer)

    def join(self) -> bool:
        """Join; return whether the version is committed."""
        response = self.client.call(m.JoinJobRequest(self.transactional_id, self.version, self.timeout_ms))
        joined = cast("m.JoinJobResponse", response)
        self._go_on(joined.producer_id, joined.producer_epoch)
        return joined.is_committed

    def keep(self) -> None:
        self.client.call(m.JobHeartbeatRequest(self.transactional_id, self.version, self.member))

    def commit_job(self, *winners: m.JobMember, records: int = 0) -> tuple[bool, int]:
        """Commit as a driver does; return whether it is a repeat, and the number of records."""
        request = m.CommitJobRequest(self.transactional_id, self.version, list(winners), records)
        committed = cast("m.CommitJobResponse", self.client.call(request))
        return committed.is_repeat, committed.records

    def abort_members(self, *members: m.JobMember) -> None:
        self.client.call(m.AbortJobMembersRequest(self.transactional_id, self.version, list(members)))


def committed(client: WireClient, topic: str, partition: int = 0) -> list[bytes | None]:
    """What a committed reader gets of a partition."""
    wanted = m.FetchPartition(topic, partition, 0, 1 << 20)
    response, payload = client.receive(
        client.send(m.FetchRequest(0, 0, 1 << 20, [wanted], m.IsolationLevel.READ_COMMITTED))
    )
    (fetched,) = cast("m.FetchResponse", response).partitions
    aborted = sorted((each.first_offset, each.producer_id) for each in fetched.aborted_transactions)
    values: list[bytes | None] = []
    aborting: set[int] = set()
    for batch in iter_batches(payload):
        producer_id = batch.header.producer_id
        aborting |= {who for first, who in aborted if first <= batch.base_offset}
        aborted = [(first, who) for first, who in aborted if first > batch.base_offset]
        if batch.header.is_control:
            aborting.discard(producer_id)
        elif producer_id not in aborting or not batch.header.is_transactional:
            values += batch.values()
    return values


def listed(client: WireClient, transactional_id: str) -> m.ListedTransaction:
    response = cast("m.ListTransactionsResponse", client.call(m.ListTransactionsRequest(transactional_id)))
    (found,) = response.transactions
    return found


def wait_until_loaded(client: WireClient) -> None:
    """Return when the coordinator of a broker that has just started has loaded all transactional ids."""

    def is_loaded() -> bool:
        try:
            client.call(m.ListTransactionsRequest())
        except CoordinatorLoadInProgress:
            return False
        return True

    wait_until(is_loaded)
