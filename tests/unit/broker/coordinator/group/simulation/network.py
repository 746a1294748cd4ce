"""A network that loses, doubles, delays and reorders."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

Then = Callable[[Any], None]
"""Takes the result, or the error."""
Call = Callable[[Then], None]
"""A request as it arrives; takes what is to be done with the response."""

MAX_IN_FLIGHT = 40


class Faults(NamedTuple):
    """How likely a message is lost, doubled, and taken out of turn."""

    loss: float = 0
    copies: float = 0
    disorder: float = 0


class Network:
    """Requests and responses on their way."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.faults = Faults(random.choice((0, 0.02, 0.2)), random.choice((0, 0.1, 0.4)), random.choice((0, 0.1, 0.5)))
        self.patience_ms = 500
        """After this time without a response a client asks again."""
        self._requests: list[tuple[Call, Then]] = []
        self._arrived: deque[tuple[Call, Then]] = deque(maxlen=100)
        """Requests that have arrived, of which late copies may arrive."""
        self._responses: list[tuple[Then, Any]] = []

    def lose_all(self) -> None:
        """Lose all that is on its way."""
        self._requests.clear()
        self._responses.clear()
        self._arrived.clear()

    def send(self, call: Call, then: Then) -> None:
        """Let `call` arrive some time, and `then` be called with its response."""
        if self.random.random() >= self.faults.loss:
            self._requests.append((call, then))
            if len(self._requests) > MAX_IN_FLIGHT:
                del self._requests[0]

    def deliver_request(self) -> None:
        """Let a request arrive, or a copy of it."""
        if self._arrived and self.random.random() < self.faults.copies / 3:
            call, then = self.random.choice(self._arrived)
        elif self._requests:
            call, then = self._taken(self._requests)
            self._arrived.append((call, then))
        else:
            return
        call(lambda result: self._respond(then, result))

    def _respond(self, then: Then, result: Any) -> None:
        if self.random.random() >= self.faults.loss:
            self._responses.append((then, result))

    def deliver_response(self) -> None:
        """Let a response arrive."""
        if self._responses:
            then, result = self._taken(self._responses)
            then(result)

    def _taken(self, messages: list[Any]) -> Any:
        at = self.random.randrange(len(messages)) if self.random.random() < self.faults.disorder else 0
        return messages[at] if self.random.random() < self.faults.copies else messages.pop(at)
