"""What handlers work with: the parts of the broker, and whoever asks."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from warmlog_broker.bodies import BodyThreads
from warmlog_broker.config import BrokerConfig
from warmlog_broker.data_directories import DataDirectories
from warmlog_broker.fetch_waits import FetchWaits
from warmlog_broker.log.file_records import FileSlice
from warmlog_broker.log.splitting import TimesFound
from warmlog_broker.moves import Moves
from warmlog_broker.outbox import Outbox
from warmlog_broker.producer_ids import ProducerIds
from warmlog_broker.repeated_lines import RepeatedLines
from warmlog_broker.tasks import Tasks
from warmlog_broker.topics import Topics
from warmlog_protocol.errors import ApiError
from warmlog_protocol.messages import Message


class Expiring(Protocol):
    """A request that is under way and may run out of time."""

    @property
    def deadline_s(self) -> float: ...
    def expire(self) -> None:
        """Answers with what has not come in time."""
        ...


class Asker(Protocol):
    """A connection, as handlers see it. Every request is ended by exactly one of the three ways."""

    @property
    def name(self) -> str:
        """The peer, for the log."""
        ...

    @property
    def is_replica(self) -> bool:
        """Whether the peer is a broker that follows partitions of this one, which no request can claim by itself."""
        ...

    @property
    def expiring(self) -> dict[int, Expiring]:
        """Requests under way that have a deadline, by correlation id; whoever ends one takes it out."""
        ...

    def answer(self, correlation_id: int, message: Message, slices: Sequence[FileSlice] = ()) -> None:
        """Ends a request with `message`, followed by the bytes of `slices`."""
        ...

    def refuse(self, correlation_id: int, error: ApiError) -> None:
        """Ends a request with an error that concerns all of it."""
        ...

    def end_without_answer(self) -> None:
        """Ends a request that nobody waits for."""
        ...

    def close(self, reason: str) -> None:
        """Cuts the connection."""
        ...


@dataclass(slots=True)
class Services:
    """The parts of one broker."""

    loop: asyncio.AbstractEventLoop
    config: BrokerConfig
    """As it is in force: where the system allows less than was asked for, that is what it says."""
    cluster_id: str
    topics: Topics
    directories: DataDirectories
    moves: Moves
    fetch_waits: FetchWaits
    producer_ids: ProducerIds
    cold_readers: Executor
    bodies: BodyThreads
    outbox: Outbox
    tasks: Tasks
    lines: RepeatedLines
    """For what peers bring about as often as they like."""
    version: str
    write_refusal: Callable[[], ApiError | None]
    """Why no records are taken and no topics made; None when they are."""
    times_found: TimesFound = field(default_factory=TimesFound)
    """For FindSplits."""
    wide_fetches: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the fetch that is read in turns: one at a time, so that many of them leave as much time to others."""
    wide_appends: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held for each turn of a produce request that is appended in turns, for the same reason."""

    @staticmethod
    def now_ms() -> int:
        """The time of day."""
        return time.time_ns() // 1_000_000
