"""What the broker counts while it works; `metrics` publishes it. Counting one event costs well under a microsecond.

All belong to the event loop's thread.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds for durations: from a heartbeat to a fetch that waits."""
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Histogram:
    """How many values fell into each interval."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the upper bounds, inclusive and ascending."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """By interval; the last one has no upper bound."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Conversions:
    """Columnar batches that were made rows for clients of Kafka. They are changed under the lock of the cache."""

    __slots__ = ("batches", "hits", "kept_bytes", "seconds")

    def __init__(self) -> None:
        self.batches = 0
        self.seconds = 0.0
        """Of threads, with their rests."""
        self.hits = 0
        """Batches that were there already."""
        self.kept_bytes = 0


class Counters:
    """The counters of one broker that have no better owner."""

    def __init__(self) -> None:
        self.request_seconds: defaultdict[tuple[str, str], Histogram] = defaultdict(lambda: Histogram(SECONDS))
        """By the wire protocol and the name of the API: from a complete request to its response. A fetch includes its
        wait for data."""
        self.errors: Counter[tuple[str, str, str]] = Counter()
        """By the wire protocol, and the names of the API and of the error class: of requests, and of their items."""
        self.denied: Counter[tuple[str, str, str]] = Counter()
        """By the wire protocol, the name of the API, and why: what principals have no right to."""
        self.appended_batches: Counter[str] = Counter()
        """By topic, as the others."""
        self.appended_records: Counter[str] = Counter()
        self.appended_bytes: Counter[str] = Counter()
        self.fetched_bytes: Counter[str] = Counter()
        self.conversions = Conversions()
        self.loop_delay_seconds = Histogram(SECONDS)
        """How much later than due the event loop ran its regular tick."""

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a topic that was deleted."""
        for counter in (self.appended_batches, self.appended_records, self.appended_bytes, self.fetched_bytes):
            del counter[topic]
