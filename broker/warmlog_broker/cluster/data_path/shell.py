"""What a `Driver` needs of its broker: messages to other brokers, threads, time and the store."""

from collections.abc import Coroutine
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Protocol

from warmlog_broker.replica.partition import Partition
from warmlog_broker.replication import events as ev

if TYPE_CHECKING:
    from warmlog_broker.cluster.data_path.driver import Driver


class Messages(Protocol):
    """The messages between brokers: see `fetching` and `serving`."""

    def send(self, to: int, driver: "Driver", message: ev.Fetch | ev.Report) -> None:
        """Send to the leader."""
        ...

    def is_due(self, node: int, driver: "Driver") -> None:
        """Take the answer to this follower by `take_answer`, as soon as there is room in a response to it."""
        ...

    def heard_ms(self, leader: int, driver: "Driver", fetch: ev.Fetch) -> int:
        """Return when the leader last responded to anything, if it has this fetch, which waits; else NEVER."""
        ...

    def echoed_ms(self, node: int, driver: "Driver", number: int) -> int:
        """Return the latest of this broker's times that a follower has echoed, if this fetch of it waits; else NEVER.

        The fetch was under way when the follower sent the echo.
        """
        ...

    def all_heard_ms(self) -> float:
        """Return the time since which each broker that has fetches of this one, or whose fetches wait, was heard."""
        ...


class Shell(Protocol):
    """What the replicas of one broker share: see `Replicas`."""

    messages: Messages
    threads: Executor
    """For work that waits for the disk."""
    restless: "set[Driver]"
    """Those that have to look at the time often: the others are ticked once in a while."""

    def is_restless(self, driver: "Driver") -> None:
        """Add one to `restless`, from the next tick on."""
        ...

    resting: "set[Driver]"
    """Those that were found at rest. Nothing has happened to them since, as far as all brokers are heard."""

    def now_ms(self) -> int: ...

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task."""
        ...

    async def write(self, driver: "Driver", write: ev.Write) -> ev.Written: ...

    def read_soon(self) -> None:
        """Read all records, linearizably: each driver gets a `RecordSeen` with the time at which that began."""
        ...

    def register(self) -> None:
        """Register this broker under a new broker epoch."""
        ...

    def obeyed(self, driver: "Driver", recovering: str) -> None: ...

    async def checkpoint(self, partition: Partition) -> None:
        """Make the log start durable. OSError."""
        ...
