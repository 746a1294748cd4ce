"""Runs `member_program.py`, and knows from what it says which partitions it owned when."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple, Self

from forked import Forked

PROGRAM = "integration.member_program"
PATIENCE_S = 40


class Ownership(NamedTuple):
    """One member's time with one partition, by the monotonic clock of the machine."""

    partition: str
    begin: float
    end: float


class MemberProcess:
    """A context manager: leaving kills the process."""

    def __init__(self, address: str, **options: Any) -> None:
        self.options = {"topics": ["orders"], "group": "etl", "session_timeout_ms": 10_000, **options}
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._died_at: float | None = None
        reading, writing = os.pipe()
        try:
            with open(os.devnull) as nothing:
                streams = (nothing.fileno(), writing, 2)
                self.process = Forked("clients", [PROGRAM, address, json.dumps(self.options)], streams, {**os.environ})
        finally:
            os.close(writing)
        self._reader = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _read(self, reading: int) -> None:
        with open(reading) as lines:
            for line in lines:
                with self._changed:
                    self.events.append(json.loads(line))
                    self._changed.notify_all()

    def kill(self) -> None:
        """SIGKILL."""
        if self._died_at is None:
            self._died_at = time.monotonic()
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def close(self) -> None:
        """SIGTERM, and wait for the end."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0
        self._reader.join()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def wait_for(self, condition: Callable[["MemberProcess"], bool]) -> None:
        """Until what it has said fulfils the condition."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), PATIENCE_S), self.events[-10:]

    def wait_for_event(self, event: str) -> dict[str, Any]:
        """The first event of this kind."""
        self.wait_for(lambda member: any(each["event"] == event for each in member.events))
        return next(each for each in self.events if each["event"] == event)

    def wait_until_it_owns(self, *partitions: str) -> None:
        self.wait_for(lambda member: member.owned == set(partitions))

    @property
    def owned(self) -> set[str]:
        """What it owns by what it said last."""
        owned: set[str] = set()
        for event in self.events:
            if event["event"] == "assigned":
                owned |= set(event["partitions"])
            elif event["event"] in ("revoked", "lost"):
                owned -= set(event["partitions"])
        return owned

    @property
    def values(self) -> list[str]:
        """Everything that it read."""
        return [value for event in self.events if event["event"] == "batch" for value in event["values"]]

    def ownerships(self) -> list[Ownership]:
        """When it owned what. A partition that it lost while it was stopped counts until it reads no more of it."""
        since: dict[str, float] = {}
        found = []
        for event in self.events:
            if event["event"] == "assigned":
                since |= dict.fromkeys(event["partitions"], event["at"])
            elif event["event"] in ("revoked", "lost"):
                found += [Ownership(each, since.pop(each), event["at"]) for each in event["partitions"]]
        end = self._died_at or float("inf")
        return found + [Ownership(partition, begin, end) for partition, begin in since.items()]


def owned_twice(members: list[MemberProcess]) -> list[tuple[Ownership, Ownership]]:
    """Pairs of different members' times with one partition that overlap."""
    return [
        (one, other)
        for first, second in combinations(members, 2)
        for one in first.ownerships()
        for other in second.ownerships()
        if one.partition == other.partition and one.begin < other.end and other.begin < one.end
    ]
