"""Rates of a broker from its counters, as they were read one after another. Pure."""

from collections import deque
from typing import NamedTuple

from msgspec.structs import replace

from warmlog.cli.commands.status import quantile_ms
from warmlog_protocol.messages import DescribeStatusResponse, FlushCounts, TopicCounts

MAX_SAMPLES = 1_800
"""An hour, if a sample is taken every two seconds."""


class Rates(NamedTuple):
    """Of the time between two samples. `flush_ms`: 99 % of the flushes took at most that."""

    time_ms: int
    records_per_s: float
    in_bytes_per_s: float
    out_bytes_per_s: float
    flush_ms: float
    connections: int


class TopicRate(NamedTuple):
    """What was appended to a topic and read of it in each second."""

    name: str
    records_per_s: float
    in_bytes_per_s: float
    out_bytes_per_s: float


class History:
    """The last hour; for the topics only the time between the last two samples."""

    def __init__(self) -> None:
        self.last: DescribeStatusResponse | None = None
        self.rates: deque[Rates] = deque(maxlen=MAX_SAMPLES)
        self.busiest: list[TopicRate] = []
        """The busiest first."""

    def add(self, status: DescribeStatusResponse) -> None:
        """Take the next sample."""
        before, self.last = self.last, status
        if before is None or (elapsed_s := (status.time_ms - before.time_ms) / 1000) <= 0:
            return
        old = {each.name: each for each in before.topics}
        topics = [_rate(each, old.get(each.name), elapsed_s) for each in status.topics]
        self.busiest = sorted((each for each in topics if any(each[1:])), key=lambda each: (-sum(each[2:]), each.name))
        flushes = {each.path: each for each in before.flushes}
        slowest = max((quantile_ms(_since(each, flushes.get(each.path)), 0.99) for each in status.flushes), default=0)
        records = sum(each.records_per_s for each in topics)
        into, out = sum(each.in_bytes_per_s for each in topics), sum(each.out_bytes_per_s for each in topics)
        self.rates.append(Rates(status.time_ms, records, into, out, slowest, status.connections))

    def within(self, seconds: int) -> list[Rates]:
        """Return the rates of the last seconds, the oldest first."""
        newest_ms = self.rates[-1].time_ms if self.rates else 0
        return [each for each in self.rates if each.time_ms > newest_ms - seconds * 1000]


def _rate(now: TopicCounts, before: TopicCounts | None, elapsed_s: float) -> TopicRate:
    counts = (now.appended_records, now.appended_bytes, now.fetched_bytes)
    old = (0, 0, 0) if before is None else (before.appended_records, before.appended_bytes, before.fetched_bytes)
    if any(was > count for was, count in zip(old, counts, strict=True)):
        old = (0, 0, 0)  # the broker was restarted
    return TopicRate(now.name, *((count - was) / elapsed_s for was, count in zip(old, counts, strict=True)))


def _since(now: FlushCounts, before: FlushCounts | None) -> FlushCounts:
    if before is None or any(was > count for was, count in zip(before.counts, now.counts, strict=True)):
        return now
    return replace(now, counts=[count - was for was, count in zip(before.counts, now.counts, strict=True)])
