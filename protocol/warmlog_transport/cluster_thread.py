"""A cluster for callers without an event loop: its connections are served by a thread of their own."""

import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from warmlog_protocol.codec.memory import zeroed_memory
from warmlog_protocol.wire.frames import Allocate
from warmlog_transport.cluster import Cluster
from warmlog_transport.errors import ClientClosed
from warmlog_transport.loop_thread import LoopThread
from warmlog_transport.options import ConnectionOptions

R = TypeVar("R")


class ClusterThread:
    """A context manager. The thread begins at once, in the process that creates this, and ends with `close`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        options: ConnectionOptions,
        name: str,
        *,
        allocate: Allocate = zeroed_memory,
    ) -> None:
        """`name` is the thread's. Connects with the first request."""
        self._thread = LoopThread(name)

        async def create() -> Cluster:
            return Cluster(bootstrap, options, allocate=allocate)

        try:
            self.cluster = self._thread.call(create)
        except BaseException:
            self._thread.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Return the result of `work`, which runs in the thread and uses `cluster`."""
        return self._thread.call(work)

    def close(self) -> None:
        """Close the connections and end the thread. May be called twice."""
        if sys.is_finalizing():  # the thread runs no longer
            return
        with suppress(ClientClosed, RuntimeError):  # it is closed; or called in the thread, by the garbage collector
            self._thread.call(self.cluster.close)
        self._thread.stop()
