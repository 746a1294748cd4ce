"""Whether bytes go on: looked at now and then, with the time as an argument."""


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
