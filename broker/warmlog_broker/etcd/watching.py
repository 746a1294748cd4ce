"""A watch that goes on over streams of etcd that end, hang, or say the same twice.

Before a stream is opened, its endpoint is asked for etcd's revision, linearizably: one that is below what was seen says
that etcd went back. A stream that says nothing for a while is asked for its progress, and replaced if it is silent
still. etcd ends those of a member that is cut off from the others.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Any

import grpc
import grpc.aio

from warmlog_broker.etcd.connection import Endpoint, Endpoints
from warmlog_broker.etcd.coordination import Change, Compacted, Revision, Unavailable, WentBack, prefix_end
from warmlog_broker.etcd.messages import DELETED, item_of, message

SILENCE_S = 3.0
"""After so long a stream is asked for its progress, and after as long again it is replaced."""
NEEDS_LEADER = ("hasleader", "true")
"""A member that is cut off from the others would report its progress, and hear of no change: etcd ends the stream."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


async def watched(endpoints: Endpoints, prefix: str, after: int) -> AsyncIterator[Revision]:
    """Yield revisions as `Coordination.watch` does."""
    pause_s = FIRST_PAUSE_S
    while True:
        endpoint = endpoints.current
        try:
            await _refuse_older(endpoints, endpoint, prefix, after)
            async for response in _responses(endpoints, endpoint, prefix, after + 1):
                pause_s = FIRST_PAUSE_S
                for revision, events in groupby(response, key=lambda event: event.kv.mod_revision):
                    if revision > after:
                        after = revision
                        yield Revision(revision, [_change(event) for event in events])
        except Unavailable:
            endpoints.use_next(endpoint)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def _refuse_older(endpoints: Endpoints, endpoint: Endpoint, prefix: str, after: int) -> None:
    """Raise WentBack if etcd is below a revision that it was at; else this endpoint has all up to that."""
    response = await endpoints.call("KV/Range", message("RangeRequest")(key=prefix.encode()), endpoint)
    if response.header.revision < after:
        raise WentBack(
            f"etcd at {endpoint.address} is at revision {response.header.revision}, and was at {after} before: it was "
            f"restored from a backup, or is another one"
        )


async def _responses(endpoints: Endpoints, endpoint: Endpoint, prefix: str, first: int) -> AsyncIterator[list[Any]]:
    """Yield the events of each response of one stream, until it fails (Unavailable). Raises Compacted, Refused."""
    stream = endpoint.watch(metadata=[*await endpoints.metadata(), NEEDS_LEADER])
    reading: asyncio.Task[Any] | None = None
    try:
        await stream.write(_created(prefix, first))
        events: list[Any] = []
        is_asked = False
        while True:
            reading = reading or asyncio.ensure_future(stream.read())
            done, _ = await asyncio.wait([reading], timeout=SILENCE_S)
            if not done:
                if is_asked:
                    raise Unavailable(f"etcd at {endpoint.address} says nothing")
                is_asked = True
                await stream.write(message("WatchRequest")(progress_request=message("WatchProgressRequest")()))
                continue
            response, reading, is_asked = reading.result(), None, False
            if response is grpc.aio.EOF:
                raise Unavailable(f"etcd at {endpoint.address} has ended a watch")
            if response.compact_revision:
                raise Compacted(f"etcd's history begins at revision {response.compact_revision}, after {first}")
            if response.canceled:
                raise Unavailable(f"etcd at {endpoint.address} has cancelled a watch: {response.cancel_reason}")
            events += response.events
            if not response.fragment:
                yield events
                events = []
    except grpc.aio.AioRpcError as error:
        endpoints.failed(endpoint, error)
    finally:
        if reading is not None:
            reading.cancel()
        stream.cancel()


def _created(prefix: str, first: int) -> Any:
    create = message("WatchCreateRequest")(
        key=prefix.encode(), range_end=prefix_end(prefix).encode(), start_revision=first, fragment=True
    )
    return message("WatchRequest")(create_request=create)


def _change(event: Any) -> Change:
    item = item_of(event.kv)
    return Change(item.key, None if event.type == DELETED else item)
