"""Decide when a connection that is idle or too slow must be closed. Times in seconds of the event loop's clock.

============  ======================================================================================
deadline      the connection is closed
============  ======================================================================================
handshake     if it is not open `handshake.timeout.ms` after its beginning
idle          if it has sent no request for `connections.max.idle.ms`, and waits for no response
no progress   if it sends less than SLOW_BYTES_PER_S of an incomplete request, or reads less of its
              responses, over `connections.stall.timeout.ms`; or, while others wait for memory that it
              holds, less than PRESSED_BYTES_PER_S over PRESSED_S
============  ======================================================================================

Pure: an active connection is checked several times a second, with the time as an argument; one at rest is checked when
it may have idled for too long.
"""

from typing import NamedTuple

from warmlog_broker.config.broker_config import BrokerConfig

SLOW_BYTES_PER_S = 1024
"""Any link is faster; a client that sends byte by byte is not."""
PRESSED_S = 1.0
PRESSED_BYTES_PER_S = 64 * 1024
"""A tenth of a slow office line: who holds memory that others wait for has to use it."""


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
    requested_s: float
    """When it last sent a complete request, or received data that had to wait."""
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

    __slots__ = ("_window_bytes", "window_s")

    def __init__(self, now_s: float) -> None:
        self.restart(0, now_s)

    def restart(self, moved_bytes: int, now_s: float) -> None:
        """Measure from now on: nothing was expected before."""
        self._window_bytes, self.window_s = moved_bytes, now_s

    def is_slow(self, moved_bytes: int, now_s: float, *, window_s: float, bytes_per_second: float) -> bool:
        """Return whether a window in which fewer bytes moved has just ended."""
        elapsed_s = now_s - self.window_s
        if elapsed_s < window_s:
            return False
        is_slow = moved_bytes - self._window_bytes < elapsed_s * bytes_per_second
        self.restart(moved_bytes, now_s)
        return is_slow


class Progress:
    """Whether a peer sends, or reads, as much as it has to: over the time of the setting, and under pressure."""

    __slots__ = ("_patient", "_pressed")

    def __init__(self, now_s: float) -> None:
        self._patient, self._pressed = Flow(now_s), Flow(now_s)

    def restart(self, moved_bytes: int, now_s: float) -> None:
        """Measure from now on: nothing was expected before."""
        self._patient.restart(moved_bytes, now_s)
        self._pressed.restart(moved_bytes, now_s)

    def missed_pace(self, moved_bytes: int, now_s: float, patience_s: float, *, is_pressed: bool) -> str:
        """Return the pace that the peer has not kept, in words; empty if it is fast enough."""
        was_slow = self._pressed.is_slow(moved_bytes, now_s, window_s=PRESSED_S, bytes_per_second=PRESSED_BYTES_PER_S)
        if self._patient.is_slow(moved_bytes, now_s, window_s=patience_s, bytes_per_second=SLOW_BYTES_PER_S):
            return f"less than {SLOW_BYTES_PER_S} bytes a second in {patience_s:g} s"
        if was_slow and is_pressed:
            return f"less than {PRESSED_BYTES_PER_S} bytes a second in {PRESSED_S:g} s"
        return ""


class Deadlines:
    def __init__(self, config: BrokerConfig, now_s: float) -> None:
        self._config = config
        self._since_s = self._busy_s = now_s
        self._requested_s = now_s
        self._receiving = Progress(now_s)
        self._sending = Progress(now_s)

    @property
    def idle_end_s(self) -> float:
        """When it will have idled for too long without further activity, as at the last call of `overdue`."""
        return max(self._busy_s, self._requested_s) + self._config.connections_max_idle_ms / 1000

    def rest_ended(self, now_s: float, now: ConnectionState) -> None:
        """Note that until now there was nothing to receive or to send."""
        self._receiving.restart(now.received_bytes, now_s)
        self._sending.restart(now.taken_bytes, now_s)

    def overdue(self, now_s: float, now: ConnectionState) -> Overdue | None:
        """Return why the connection must be closed; None if it need not be."""
        config = self._config
        # The peer is not late while we do not read, and what follows a complete request has just begun.
        if not now.is_receiving or now.requested_s > self._requested_s:
            self._receiving.restart(now.received_bytes, now_s)
        self._requested_s = now.requested_s
        if not now.is_sending:
            self._sending.restart(now.taken_bytes, now_s)
        if not now.is_open:
            if (now_s - self._since_s) * 1000 > config.handshake_timeout_ms:
                return Overdue("handshake.timeout.ms", f"no handshake within {config.handshake_timeout_ms} ms")
            return None
        return self._stalled(now_s, now) or self._idle(now_s, now)

    def _stalled(self, now_s: float, now: ConnectionState) -> Overdue | None:
        patience_s = self._config.connections_stall_timeout_ms / 1000
        why = ""
        if now.is_receiving:
            is_pressed = now.blocks_requests
            pace = self._receiving.missed_pace(now.received_bytes, now_s, patience_s, is_pressed=is_pressed)
            if pace:
                why = f"it sent {pace} of a request"
        if now.is_sending and not why:
            holds_requests = now.blocks_requests and not now.is_receiving
            is_pressed = now.blocks_responses or holds_requests
            pace = self._sending.missed_pace(now.taken_bytes, now_s, patience_s, is_pressed=is_pressed)
            if pace:
                why = f"it read {pace} of its responses"
        if not why:
            return None
        if now.blocks_requests:
            why = f"others wait for memory that it holds, and {why}"
        elif now.blocks_responses:
            why = f"responses take more than queued.max.response.bytes, and {why}"
        return Overdue("connections.stall.timeout.ms", why)

    def _idle(self, now_s: float, now: ConnectionState) -> Overdue | None:
        if now.is_served or now.is_receiving or now.is_sending:
            self._busy_s = now_s
        if now_s <= self.idle_end_s:
            return None
        return Overdue("connections.max.idle.ms", f"idle for {self._config.connections_max_idle_ms} ms")
