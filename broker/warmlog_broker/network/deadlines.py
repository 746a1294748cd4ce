"""When one connection last did what, and whether it has to go. Times in seconds of the event loop's clock.

Whether bytes go on: looked at now and then, with the time as an argument.
"""

from dataclasses import dataclass

from warmlog_broker.config.broker_config import BrokerConfig


class Pace:
    """How many bytes had moved when it was last looked at."""

    __slots__ = ("_moved_bytes", "since_s")

    def __init__(self, now_s: float) -> None:
        self._moved_bytes = 0
        self.since_s = now_s

    def restart(self, moved_bytes: int, now_s: float) -> None:
        """Nothing is expected before now."""
        self._moved_bytes = moved_bytes
        self.since_s = now_s

    def is_slow(self, moved_bytes: int, now_s: float, *, window_s: float, bytes_per_second: float) -> bool:
        """Whether a window is over in which fewer bytes moved. `moved_bytes` is the sum since the beginning."""
        elapsed_s = now_s - self.since_s
        if elapsed_s < window_s:
            return False
        is_slow = moved_bytes - self._moved_bytes < elapsed_s * bytes_per_second
        self.restart(moved_bytes, now_s)
        return is_slow

    def stands_still(self, moved_bytes: int, now_s: float, *, limit_s: float) -> bool:
        """Whether nothing at all has moved for `limit_s`."""
        if moved_bytes != self._moved_bytes:
            self.restart(moved_bytes, now_s)
        return now_s - self.since_s >= limit_s


@dataclass(frozen=True, slots=True)
class Overdue:
    """Why a connection is closed: which rule, and what to say."""

    rule: str
    reason: str


@dataclass(slots=True)
class Standing:
    """What a connection is doing right now."""

    is_open: bool
    """It has shaken hands."""
    has_partial: bool
    """A request has come in part."""
    is_kept_waiting: bool
    """We do not read it."""
    is_in_the_way: bool
    """It holds memory for requests, and others wait for some."""
    is_reader_due: bool
    """There is something to send that it does not take."""
    is_hoarding: bool
    """It holds memory for answers, and there is too much of that."""
    is_served: bool
    """Requests of it are under way, and it has taken everything that was sent."""
    received_bytes: int
    taken_bytes: int


class Deadlines:
    """The clock of one connection."""

    def __init__(self, config: BrokerConfig, now_s: float) -> None:
        self.active_s = now_s
        """The last time that it asked for something, or took something that had to wait."""
        self.partial_since_s = now_s
        """When the first byte of a request came that is not whole."""
        self.rested_s = now_s
        """The last time that there was nothing to receive or to send."""
        self._config = config
        self._since_s = now_s
        self._receiving = Pace(now_s)
        self._taking = Pace(now_s)
        self._reading = Pace(now_s)

    def overdue(self, now_s: float, now: Standing) -> Overdue | None:
        """Why the connection must be closed, if it must. To be asked several times a second."""
        config = self._config
        if now.is_kept_waiting:
            self.partial_since_s = now_s  # we keep the peer waiting, not it us
        if not now.is_open:
            if (now_s - self._since_s) * 1000 > config.handshake_timeout_ms:
                return Overdue("handshake.timeout.ms", f"no handshake within {config.handshake_timeout_ms} ms")
            return None
        return self._receiving_too_late(now_s, now) or self._reading_too_late(now_s, now) or self._idle(now_s, now)

    def _receiving_too_late(self, now_s: float, now: Standing) -> Overdue | None:
        config = self._config
        if not now.has_partial or now.is_kept_waiting:
            self._receiving.restart(now.received_bytes, now_s)
            return None
        if self._receiving.since_s < max(self.rested_s, self.partial_since_s):
            self._receiving.restart(now.received_bytes, now_s)
        if (now_s - self.partial_since_s) * 1000 > config.request_receive_timeout_ms:
            limit_ms = config.request_receive_timeout_ms
            return Overdue("request.receive.timeout.ms", f"a request was not whole {limit_ms} ms after it began")
        if self._is_slow(self._receiving, now.received_bytes, now_s) and now.is_in_the_way:
            return Overdue(
                "stall.timeout.ms",
                f"others wait for the memory that it holds, and in {config.stall_timeout_ms} ms its request got on by "
                f"less than {config.stall_min_bytes_per_second} bytes a second",
            )
        return None

    def _reading_too_late(self, now_s: float, now: Standing) -> Overdue | None:
        config = self._config
        if not now.is_reader_due or min(self._reading.since_s, self._taking.since_s) < self.rested_s:
            self._reading.restart(now.taken_bytes, now_s)
            self._taking.restart(now.taken_bytes, now_s)
            return None
        if self._reading.stands_still(now.taken_bytes, now_s, limit_s=config.send_stall_timeout_ms / 1000):
            return Overdue(
                "send.stall.timeout.ms", f"it took nothing of what was answered for {config.send_stall_timeout_ms} ms"
            )
        if self._is_slow(self._taking, now.taken_bytes, now_s):
            pace = (
                f"in {config.stall_timeout_ms} ms it took less than {config.stall_min_bytes_per_second} bytes a second "
                "of its answers"
            )
            if now.is_hoarding:
                return Overdue("stall.timeout.ms", f"answers take more than queued.max.response.bytes, and {pace}")
            if now.is_in_the_way and now.is_kept_waiting:
                return Overdue("stall.timeout.ms", f"others wait for the memory that its requests hold, and {pace}")
        return None

    def _idle(self, now_s: float, now: Standing) -> Overdue | None:
        if now.is_served or (now_s - self.active_s) * 1000 <= self._config.connections_max_idle_ms:
            return None
        return Overdue("connections.max.idle.ms", f"idle for {self._config.connections_max_idle_ms} ms")

    def _is_slow(self, pace: Pace, moved_bytes: int, now_s: float) -> bool:
        config = self._config
        return pace.is_slow(
            moved_bytes,
            now_s,
            window_s=config.stall_timeout_ms / 1000,
            bytes_per_second=config.stall_min_bytes_per_second,
        )
