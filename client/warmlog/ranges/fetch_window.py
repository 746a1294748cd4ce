"""Which fetches to send ahead while one range is read: decisions only, no I/O.

A fetch names the offset where it starts, but how far it gets is known only from its response. To keep several in
flight, the next starts are guessed from the batches seen so far. If batches are alike except for a few short ones, as
bulk producers write them, guesses are at batch boundaries: a short batch moves those already sent into the middle of a
batch, whose response begins with that batch, and later guesses are corrected. If batches are not alike, guesses are too
low rather than too high: responses overlap by about a batch, which the reader skips. A guess too high costs one more
fetch for the gap. No guess can lose or repeat a record: the reader takes what is at `position` or after it, and only
that moves `position`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from warmlog_protocol.batch import BatchHeader

FETCH_BYTES = 4 * 1024 * 1024
"""Each fetch costs reader and broker about 0.3 ms; more than 4 MiB gains nothing measurable."""
IN_FLIGHT = 4
ALIKE_SHARE = 4
"""Batches count as alike when at most a quarter of them are shorter than the others."""


class Fetch(NamedTuple):
    """One request: from `start` on, at most `max_bytes` (and at least one batch)."""

    start: int
    max_bytes: int


class FetchWindow:
    """The state of one range `[start, end)`: what has been read and what has been requested."""

    def __init__(self, start: int, end: int, *, in_flight: int = IN_FLIGHT, fetch_bytes: int = FETCH_BYTES) -> None:
        self.position = start  # the first offset that has not been read
        self.end = end
        self._in_flight = in_flight
        self._fetch_bytes = fetch_bytes
        self._sent: list[Fetch] = []  # in flight, in the order of their offsets
        self._frontier = start  # where the next guess starts
        self._stride: Fetch | None = None  # how far one fetch gets, and with how many bytes; None while unknown
        self._largest_bytes = 0
        self._span = 0  # of batches that are alike; 0 if they are not
        self._trusts_guesses = True

    @property
    def is_done(self) -> bool:
        return self.position >= self.end

    def to_send(self) -> list[Fetch]:
        """Return the fetches to send now. The first after a start or a gap is at `position`; the others are guesses."""
        new: list[Fetch] = []
        until = self._sent[0].start if self._sent else self.end
        # A start within a span of `position` is in the same batch.
        has_gap = until > self.position and not (self._trusts_guesses and until < self.position + self._span)
        if not self.is_done and (has_gap or not self._sent):
            new.append(self._fetch(self.position, until))
            self._sent.insert(0, new[0])
            self._frontier = max(self._frontier, self._guess_end(new[0]))
        while self._stride is not None and self._frontier < self.end and len(self._sent) < self._in_flight:
            new.append(self._fetch(self._frontier, self.end))
            self._sent.append(new[-1])
            self._frontier = self._guess_end(new[-1])
        return new

    def accepts(self, fetch: Fetch, base_offset: int | None) -> bool:
        """Whether the response to `fetch`, whose first batch begins at `base_offset`, has what is at `position`.

        Otherwise it is of no use, and `to_send` fetches from `position`.
        """
        is_of_use = fetch.start <= self.position or (base_offset is not None and base_offset <= self.position)
        self._trusts_guesses = self._trusts_guesses and is_of_use
        return is_of_use

    def next_due(self) -> Fetch:
        """Return the fetch whose response is read next; it is no longer in flight."""
        return self._sent.pop(0)

    def advance(self, next_offset: int) -> None:
        """Note that everything before `next_offset` has been read."""
        self.position = max(self.position, next_offset)
        self._frontier = max(self._frontier, self.position)

    def learn(self, batches: "Sequence[BatchHeader]") -> None:
        """Take the complete batches of one response as a sample of those to come."""
        if not batches:
            return
        self._largest_bytes = max(batch.size_bytes for batch in batches)
        self._span = _common_span(batches)
        if self._span:
            count = max(1, self._fetch_bytes // self._largest_bytes)
            self._stride = Fetch(count * self._span, count * self._largest_bytes)
        else:
            span = batches[-1].next_offset - batches[0].base_offset
            sure_bytes = max(self._fetch_bytes - self._largest_bytes, self._largest_bytes)
            whole_bytes = sum(batch.size_bytes for batch in batches)
            self._stride = Fetch(max(1, span * sure_bytes // whole_bytes), self._fetch_bytes)
        if not self._sent:
            self._frontier = self.position
        elif self._span:
            last = self._sent[-1]  # the next guess is at a batch boundary, as `position` is one
            inside = (last.start - self.position) % self._span
            self._frontier = max(self.position, self._guess_end(last) - inside)

    def restart(self, position: int) -> None:
        """Forget the fetches in flight, and continue at `position`."""
        self._sent.clear()
        self._frontier = self.position = position

    def _guess_end(self, fetch: Fetch) -> int:
        return fetch.start + (self._stride.start if self._stride else 0)

    def _fetch(self, start: int, until: int) -> Fetch:
        """A fetch at `start` of no more bytes than it takes, as far as is known, to reach `until`."""
        if self._stride is None:
            return Fetch(start, self._fetch_bytes)
        stride, stride_bytes = self._stride
        needed_bytes = (until - start) * stride_bytes * 5 // (stride * 4) + self._largest_bytes
        return Fetch(start, min(stride_bytes, needed_bytes))


def _common_span(batches: "Sequence[BatchHeader]") -> int:
    """The span of batches that are alike; 0 if they are not. Some may be shorter, none longer or larger."""
    spans = [batch.next_offset - batch.base_offset for batch in batches]
    span = max(spans)
    largest_bytes = max(batch.size_bytes for batch in batches)
    like = [batch.size_bytes for batch, own in zip(batches, spans, strict=True) if own == span]
    are_alike = len(like) * ALIKE_SHARE >= len(batches) * (ALIKE_SHARE - 1)
    return span if are_alike and (largest_bytes - min(like)) * 64 <= largest_bytes else 0
