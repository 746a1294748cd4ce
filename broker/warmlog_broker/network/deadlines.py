"""Decide when a connection that is idle or too slow must be closed. Times in seconds of the event loop's clock.

Pure: an active connection is checked several times a second, with the time as an argument; one at rest is checked when
it may have idled for too long.
"""

from typing import NamedTuple

from warmlog_broker.config.broker_config import BrokerConfig


class ConnectionState(NamedTuple):
    """The current activity of a connection."""

    is_open: bool
    """The Handshake was received and, if the listener authenticates, the client has authenticated."""
    is_receiving: bool
    """A request is incomplete, and we read the socket."""
    is_sending: bool
    """There is unsent data that the peer does not accept."""
    is_served: bool
    """Requests are in flight, and the peer has received everything that was sent."""
    blocks_requests: bool
    """It holds memory for requests, and other connections wait for memory."""
    blocks_responses: bool
    """It holds memory for responses, and all connections together hold too much."""
    received_bytes: int
    """Since the connection was opened."""
    taken_bytes: int
    """Bytes of responses that the peer has received since the connection was opened."""


class Overdue(NamedTuple):
    """Why a connection is closed."""

    rule: str
    """The setting."""
    reason: str


class Flow:
    """Bytes in one direction, while the peer is expected to send or read. All counts are totals of the connection."""

    __slots__ = ("_window_bytes", "moved_bytes", "moved_s", "window_s")

    def __init__(self, now_s: float) -> None:
        self.restart(0, now_s)

    def restart(self, moved_bytes: int, now_s: float) -> None:
        """Measure from now on: nothing was expected before."""
        self.moved_bytes = self._window_bytes = moved_bytes
        self.moved_s = self.window_s = now_s

    def idle_s(self, moved_bytes: int, now_s: float) -> float:
        """Return for how long no byte has moved."""
        if moved_bytes != self.moved_bytes:
            self.moved_bytes, self.moved_s = moved_bytes, now_s
        return now_s - self.moved_s

    def is_slow(self, moved_bytes: int, now_s: float, *, window_s: float, bytes_per_second: float) -> bool:
        """Return whether a window in which fewer bytes moved has just ended."""
        elapsed_s = now_s - self.window_s
        if elapsed_s < window_s:
            return False
        is_slow = moved_bytes - self._window_bytes < elapsed_s * bytes_per_second
        self._window_bytes, self.window_s = moved_bytes, now_s
        return is_slow


class Deadlines:
    """The deadlines of one connection."""

    def __init__(self, config: BrokerConfig, now_s: float) -> None:
        self.active_s = now_s
        """When it last sent a request, or received data that had to wait."""
        self._config = config
        self._since_s = self._request_since_s = now_s
        self._has_partial = False
        self._receiving = Flow(now_s)
        self._sending = Flow(now_s)

    @property
    def idle_end_s(self) -> float:
        """When it will have idled for too long without further activity."""
        return self.active_s + self._config.connections_max_idle_ms / 1000

    def received(self, now_s: float, has_requests: bool, has_partial: bool) -> None:
        """Note received bytes, which completed requests or began one."""
        if has_requests:
            self.active_s = now_s
        if has_requests or not self._has_partial:
            self._request_since_s = now_s
        self._has_partial = has_partial

    def rest_ended(self, now_s: float) -> None:
        """Note that until now there was nothing to receive or to send."""
        self.active_s = now_s
        self._receiving.restart(self._receiving.moved_bytes, now_s)
        self._sending.restart(self._sending.moved_bytes, now_s)

    def overdue(self, now_s: float, now: ConnectionState) -> Overdue | None:
        """Return why the connection must be closed; None if it need not be."""
        config = self._config
        if not now.is_receiving:
            self._request_since_s = now_s  # the peer is not late while we do not read
            self._receiving.restart(now.received_bytes, now_s)
        if not now.is_sending:
            self._sending.restart(now.taken_bytes, now_s)
        if not now.is_open:
            if (now_s - self._since_s) * 1000 > config.handshake_timeout_ms:
                return Overdue("handshake.timeout.ms", f"no handshake within {config.handshake_timeout_ms} ms")
            return None
        return (
            (self._receiving_too_late(now_s, now) if now.is_receiving else None)
            or (self._sending_too_late(now_s, now) if now.is_sending else None)
            or self._idle(now_s, now)
        )

    def _receiving_too_late(self, now_s: float, now: ConnectionState) -> Overdue | None:
        config = self._config
        if self._receiving.window_s < self._request_since_s:
            self._receiving.restart(now.received_bytes, now_s)
        if (now_s - self._request_since_s) * 1000 > config.request_receive_timeout_ms:
            limit_ms = config.request_receive_timeout_ms
            return Overdue("request.receive.timeout.ms", f"a request was incomplete {limit_ms} ms after its first byte")
        if self._is_slow(self._receiving, now.received_bytes, now_s) and now.blocks_requests:
            return Overdue("stall.timeout.ms", f"others wait for memory that it holds, and it sent {self._pace}")
        return None

    def _sending_too_late(self, now_s: float, now: ConnectionState) -> Overdue | None:
        config = self._config
        if self._sending.idle_s(now.taken_bytes, now_s) * 1000 >= config.send_stall_timeout_ms:
            limit_ms = config.send_stall_timeout_ms
            return Overdue("send.stall.timeout.ms", f"it read none of its responses for {limit_ms} ms")
        if self._is_slow(self._sending, now.taken_bytes, now_s):
            pace = f"it read {self._pace} of its responses"
            if now.blocks_responses:
                return Overdue("stall.timeout.ms", f"responses take more than queued.max.response.bytes, and {pace}")
            if now.blocks_requests and not now.is_receiving:
                return Overdue("stall.timeout.ms", f"others wait for memory that its requests hold, and {pace}")
        return None

    def _idle(self, now_s: float, now: ConnectionState) -> Overdue | None:
        if now.is_served:
            self.active_s = now_s
        if now_s <= self.idle_end_s:
            return None
        return Overdue("connections.max.idle.ms", f"idle for {self._config.connections_max_idle_ms} ms")

    @property
    def _pace(self) -> str:
        config = self._config
        return f"less than {config.stall_min_bytes_per_second} bytes a second in {config.stall_timeout_ms} ms"

    def _is_slow(self, flow: Flow, moved_bytes: int, now_s: float) -> bool:
        config = self._config
        return flow.is_slow(
            moved_bytes,
            now_s,
            window_s=config.stall_timeout_ms / 1000,
            bytes_per_second=config.stall_min_bytes_per_second,
        )
