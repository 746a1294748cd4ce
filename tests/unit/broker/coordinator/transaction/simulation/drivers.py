"""Drivers of jobs and the attempts of their tasks, as the simulation has them: what Spark does with the sink."""

from typing import Any

from unit.broker.coordinator.group.simulation.network import Network
from unit.broker.coordinator.transaction.simulation.coordinator import Coordinator
from unit.broker.coordinator.transaction.simulation.producers import STEADY, TIMEOUTS_MS, Client, Writer
from unit.broker.coordinator.transaction.simulation.truth import Token
from warmlog_broker.coordinator.transaction.decisions.producers import NOBODY
from warmlog_broker.coordinator.transaction.decisions.state import Incarnation
from warmlog_protocol.errors import ApiError, InconsistentTopicId, StaleJobVersion, TransactionAbortable

TASKS = 3
MAX_ATTEMPTS = 12


def rows_of(job: str, version: int, task: int) -> tuple[Token, ...]:
    """Return what a task has to write: always the same, and nothing at times."""
    count = (version + 2 * task) % 4 if version % 3 else 0
    return tuple((job, version, task, row) for row in range(count))


class Attempt(Writer):
    """One attempt of a task: it joins, writes its rows, and says so."""

    def __init__(self, network: Network, coordinator: Coordinator, job: str, version: int, task: int) -> None:
        super().__init__(network, coordinator, job)
        self.version = version
        self.task = task
        self.is_done = False
        self.has_nothing_to_write = False
        """The version is committed, as it was told, or its task has no rows."""
        self.error: ApiError | None = None
        self._timeout_ms = self.random.choice(TIMEOUTS_MS)
        self._left = list(rows_of(job, version, task))

    def work(self) -> None:
        if self.is_done:
            self._zombie_write()
        elif self.has_failed:
            self.is_running = False
        elif self.producer == NOBODY:
            self._join()
        elif self._left:
            count = self.random.randint(1, len(self._left))
            rows, self._left = self._left[:count], self._left[count:]
            self.write(self.random.choice(STEADY), tuple(rows))
        elif self.is_all_acknowledged:
            self.is_done = True
        else:
            self.write_again()
            if self.random.random() < 0.2:
                self._keep()

    def _zombie_write(self) -> None:
        """Write once more, as the attempt of a speculative twin may that has lost and does not know it."""
        has_lost = self.coordinator.truth.outcomes.get(self.producer) is False
        if has_lost and self.random.random() < 0.3:
            self.write(self.random.choice(STEADY), ((self.name, self.version, self.task, "late"),))
            self.is_running = self.random.random() < 0.7

    def _join(self) -> None:
        if not self._left:
            self.is_done = self.has_nothing_to_write = True
            return
        self.ask(lambda then: self.coordinator.join(self.name, self.version, self._timeout_ms, then), self._joined)

    def _joined(self, result: Any) -> None:
        if isinstance(result, Incarnation):
            self.producer = result
            self.begin_epoch()
        elif result is None:
            self.is_done = self.has_nothing_to_write = True
        elif not result.retriable:
            self.error = result
            self.is_running = False

    def _keep(self) -> None:
        def told(result: Any) -> None:
            self.has_failed = self.has_failed or (isinstance(result, ApiError) and not result.retriable)

        self.ask(lambda then: self.coordinator.keep(self.name, self.version, self.producer, then), told)


class Driver(Client):
    """Runs one version after the other, and each until it is committed."""

    def __init__(self, network: Network, coordinator: Coordinator, job: str, version: int) -> None:
        super().__init__(network, coordinator)
        self.job = job
        self.version = version
        self.commit_count = 0
        self.attempts: list[Attempt] = []
        self.zombies: list[Attempt] = []
        self._begin()

    def _begin(self) -> None:
        rows = {row for task in range(TASKS) for row in rows_of(self.job, self.version, task)}
        self.coordinator.truth.rows.setdefault((self.job, self.version), rows)
        self.zombies = (self.zombies + self.attempts)[-MAX_ATTEMPTS:]
        self.attempts = []
        self._messages: dict[int, Attempt] = {}

    def work(self) -> None:
        for attempt in self.attempts:
            if attempt.is_done:
                self._messages.setdefault(attempt.task, attempt)
            elif isinstance(attempt.error, StaleJobVersion):
                self._give_up()
                return
        if len(self._messages) == TASKS:
            self._commit()
        elif len(self.attempts) < MAX_ATTEMPTS:
            self._start_attempts()
        elif not any(attempt.is_running and not attempt.is_done for attempt in self.attempts):
            self._begin()

    def _start_attempts(self) -> None:
        """Start one for each task that has none, and a speculative one at times."""
        busy = {attempt.task for attempt in self.attempts if attempt.is_running and not attempt.is_done}
        for task in range(TASKS):
            if (task not in self._messages and task not in busy) or self.random.random() < 0.02:
                self.attempts.append(Attempt(self.network, self.coordinator, self.job, self.version, task))

    def _commit(self) -> None:
        version, winners = self.version, self._winners()
        self.ask(lambda then: self.coordinator.commit_job(self.job, version, winners, then), self._committed)

    def _winners(self) -> list[Incarnation]:
        return [attempt.producer for attempt in self._messages.values() if not attempt.has_nothing_to_write]

    def _committed(self, result: Any) -> None:
        if not isinstance(result, ApiError):
            self._abort_members()
            self.commit_count += 1
            self.version += 1
            self._begin()
        elif isinstance(result, StaleJobVersion):
            self._give_up()
        elif isinstance(result, TransactionAbortable | InconsistentTopicId):
            self._abort_members()
            self._begin()

    def _abort_members(self) -> None:
        """Ask to abort some members, as Spark does after an error, also if it was decided."""
        if self.random.random() < 0.5:
            members = [attempt.producer for attempt in self.attempts if self.random.random() < 0.7]
            version = self.version
            self.network.send(
                lambda then: self.coordinator.abort_members(self.job, version, members, then), lambda _: None
            )

    def _give_up(self) -> None:
        self.is_final = True
        self.is_running = False
