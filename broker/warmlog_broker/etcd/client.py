"""`Coordination` by etcd's gRPC interface, over several endpoints.

A call goes to the endpoint that answered last, and to the next after a failure. A transaction is sent once: after a
failure its outcome is unknown, and only the caller can repeat it. Reads, and calls that may be made twice, are sent
again until their deadline.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from warmlog_broker.etcd.connection import ATTEMPT_S, Endpoints, EtcdOptions
from warmlog_broker.etcd.coordination import (
    ChangedAt,
    Compare,
    Failed,
    Item,
    LeaseEnded,
    Listing,
    Operation,
    Outcome,
    Put,
    Revision,
    Succeeded,
    Unavailable,
    Unknown,
    WentBack,
)
from warmlog_broker.etcd.messages import CREATE, EQUAL, MOD, item_of, message
from warmlog_broker.etcd.watching import watched

DEADLINE_S = 6.0
PAUSE_S = 0.05
"""Before the same call is sent again."""
PAGE_KEYS = 1000


class EtcdClient:
    """As `Coordination`. Create and use it in one event loop."""

    def __init__(self, options: EtcdOptions) -> None:
        """InvalidConfig if a certificate cannot be read."""
        self.endpoints = Endpoints(options)
        self._seen = 0
        """The largest revision of a response: later calls have no lower one."""

    async def close(self) -> None:
        """Close all connections; calls that are under way are cancelled."""
        await self.endpoints.close()

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[Operation], read: Sequence[str] = ()
    ) -> Outcome:
        request = message("TxnRequest")(
            compare=[_compare(each) for each in compares],
            success=[_operation(each) for each in operations],
            failure=[message("RequestOp")(request_range=_range(key)) for key in read],
        )
        seen = self._seen
        try:
            response = await self.endpoints.call("KV/Txn", request)
        except Unavailable as error:
            return Unknown(str(error))
        revision = self._checked(response.header.revision, seen)
        if response.succeeded:
            return Succeeded(revision)
        found = [item_of(each) for part in response.responses for each in part.response_range.kvs]
        return Failed(revision, {item.key: item for item in found})

    async def range(self, key: str, end: str | None = None) -> Listing:
        """As `Coordination.range`: in pages, all of one revision."""
        items: list[Item] = []
        revision, seen = 0, self._seen
        while True:
            page = await self._repeated("KV/Range", _range(key, end, limit=PAGE_KEYS, revision=revision))
            revision = revision or self._checked(page.header.revision, seen)
            items += map(item_of, page.kvs)
            if not page.more:
                return Listing(items, revision)
            key = items[-1].key + "\0"

    def watch(self, prefix: str, after: int) -> AsyncIterator[Revision]:
        return watched(self.endpoints, prefix, after)

    async def grant(self, ttl_s: int) -> int:
        """As `Coordination.grant`. One whose answer was lost ends by itself."""
        response = await self._repeated("Lease/LeaseGrant", message("LeaseGrantRequest")(TTL=ttl_s))
        lease: int = response.ID
        return lease

    async def keep_alive(self, lease: int) -> int:
        """As `Coordination.keep_alive`, sent once: it is called often."""
        endpoint, request = self.endpoints.current, message("LeaseKeepAliveRequest")(ID=lease)
        began_s, is_answered = time.monotonic(), False
        stream = endpoint.keep_alive(metadata=await self.endpoints.metadata(), timeout=ATTEMPT_S)
        try:
            await stream.write(request)
            response = await stream.read()
            is_answered = response is not grpc.aio.EOF
        except grpc.aio.AioRpcError as error:
            self.endpoints.failed(endpoint, error)
        finally:
            stream.cancel()
            self.endpoints.on_call("LeaseKeepAlive", time.monotonic() - began_s, is_answered)
        if not is_answered:
            self.endpoints.use_next(endpoint)
            raise Unavailable(f"etcd at {endpoint.address} did not say whether a lease is kept alive")
        ttl_s: int = response.TTL
        return max(ttl_s, 0)

    async def revoke(self, lease: int) -> None:
        try:
            await self._repeated("Lease/LeaseRevoke", message("LeaseRevokeRequest")(ID=lease))
        except LeaseEnded:
            return

    def _checked(self, revision: int, seen: int) -> int:
        """Return the revision of a response. WentBack if it is below one that was seen before the call."""
        if revision < seen:
            raise WentBack(f"etcd is at revision {revision}, and was at {seen} before")
        self._seen = max(self._seen, revision)
        return revision

    async def _repeated(self, method: str, request: Any) -> Any:
        """Return the response of the first endpoint that answers."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + DEADLINE_S
        while True:
            try:
                return await self.endpoints.call(method, request)
            except Unavailable:
                if loop.time() > deadline_s:
                    raise
                await asyncio.sleep(PAUSE_S)


def _range(key: str, end: str | None = None, *, limit: int = 0, revision: int = 0) -> Any:
    return message("RangeRequest")(key=key.encode(), range_end=(end or "").encode(), limit=limit, revision=revision)


def _compare(compare: Compare) -> Any:
    kind, key = message("Compare"), compare.key.encode()
    if isinstance(compare, ChangedAt):
        return kind(result=EQUAL, target=MOD, key=key, mod_revision=compare.revision)
    return kind(result=EQUAL, target=CREATE, key=key, create_revision=compare.revision)


def _operation(operation: Operation) -> Any:
    kind, key = message("RequestOp"), operation.key.encode()
    if isinstance(operation, Put):
        return kind(request_put=message("PutRequest")(key=key, value=operation.value, lease=operation.lease))
    end = (operation.end or "").encode()
    return kind(request_delete_range=message("DeleteRangeRequest")(key=key, range_end=end))
