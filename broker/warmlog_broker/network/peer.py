"""A connection, as handlers see it."""

from collections.abc import Sequence
from typing import Protocol

from warmlog_broker.storage.record.file_records import FileSlice
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
