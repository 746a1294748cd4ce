"""A network that loses, doubles, delays and reorders, and the clients that live with it."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from unit.broker.coordinator.transaction.simulation.coordinator import Coordinator, Then

Call = Callable[[Then], None]
"""A request as it arrives; takes what is to be done with the response."""

MAX_IN_FLIGHT = 40
PATIENCES_MS = (300, 3000)
_SHARES = ((0, 0.02, 0.2), (0, 0.1, 0.4), (0, 0.1, 0.5))


class Network:
    """Requests and responses on their way."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._requests: list[tuple[Call, Then]] = []
        self._arrived: deque[tuple[Call, Then]] = deque(maxlen=100)
        """Requests that have arrived, of which late copies may arrive."""
        self._responses: list[tuple[Then, Any]] = []
        self._loss, self._copies, self._disorder = (random.choice(shares) for shares in _SHARES)
        self.patience_ms = random.choice(PATIENCES_MS)
        """After this time without a response a client asks again."""

    def be_perfect(self) -> None:
        """Lose all that is on its way, and nothing from now on."""
        self._loss = self._copies = self._disorder = 0
        self._requests.clear()
        self._responses.clear()
        self._arrived.clear()

    def send(self, call: Call, then: Then) -> None:
        """Let `call` arrive some time, and `then` be called with its response."""
        if self.random.random() >= self._loss:
            self._requests.append((call, then))
            if len(self._requests) > MAX_IN_FLIGHT:
                del self._requests[0]

    def deliver_request(self) -> None:
        """Let a request arrive, or a copy of it."""
        if self._arrived and self.random.random() < self._copies / 3:
            call, then = self.random.choice(self._arrived)
        elif self._requests:
            call, then = self._taken(self._requests)
            self._arrived.append((call, then))
        else:
            return
        call(lambda result: self._respond(then, result))

    def _respond(self, then: Then, result: Any) -> None:
        if self.random.random() >= self._loss:
            self._responses.append((then, result))

    def deliver_response(self) -> None:
        """Let a response arrive."""
        if self._responses:
            then, result = self._taken(self._responses)
            then(result)

    def _taken(self, messages: list[Any]) -> Any:
        at = self.random.randrange(len(messages)) if self.random.random() < self._disorder else 0
        return messages[at] if self.random.random() < self._copies else messages.pop(at)


class Client:
    """Asks one thing at a time, again and again until it gets a response."""

    def __init__(self, network: Network, coordinator: Coordinator) -> None:
        self.network = network
        self.coordinator = coordinator
        self.random = network.random
        self.is_running = True
        self.is_final = False
        """It was told to give up."""
        self._asked: tuple[Call, Then] | None = None
        self._number = 0
        self._asked_ms = 0

    @property
    def is_waiting(self) -> bool:
        return self._asked is not None

    def ask(self, call: Call, then: Then) -> None:
        """Send a request."""
        self._number += 1
        number = self._number
        self._asked = call, then
        self._asked_ms = self.coordinator.now_ms

        def respond(result: Any) -> None:
            if self.is_running and number == self._number and self._asked is not None:
                self._asked = None
                then(result)

        self.network.send(call, respond)

    def ask_again(self) -> None:
        """Send the request again if the response takes long."""
        if self._asked is not None and self.coordinator.now_ms - self._asked_ms > self.network.patience_ms:
            self.ask(*self._asked)

    def step(self) -> None:
        """Go on with the work, unless it waits for a response."""
        if self.is_waiting:
            self.ask_again()
        else:
            self.work()

    def work(self) -> None:
        """Do the next thing."""
        raise NotImplementedError
