"""Where the log of a follower and that of its leader part, and what the follower cuts to agree again.

A log is a list of batches; (epoch, offset) names one batch, as only one broker appends in an epoch. So two logs agree
up to an offset if the batch before it is of the same epoch in both. A follower asks with its end and the epoch of the
batch before that; the leader answers where that epoch, or the newest one that it knows below, ends in its own log. The
follower cuts and asks again, until there is no divergence. Nothing is ever cut to the high watermark: it lags.
"""

from typing import NamedTuple

import msgspec

NO_EPOCH = -1
"""Of batches that were written before there were epochs."""

Epochs = tuple[tuple[int, int], ...]
"""Epochs with the offsets at which they begin, both strictly rising."""


class Log(msgspec.Struct, frozen=True):
    """The bounds of a log; ends are exclusive."""

    start: int = 0
    end: int = 0
    flushed: int = 0
    """What this broker holds for good ends here: what is on disk or, with write.caching, the log. At most `end`."""
    high_watermark: int = 0
    """What is known to be committed ends here: at most `flushed`."""
    epochs: Epochs = ()
    truncations: int = 0
    """How often it was cut: what was begun before a cut says nothing about the log after it."""

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else NO_EPOCH

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch; NO_EPOCH if it is not known or there is none."""
        return next((epoch for epoch, start in reversed(self.epochs) if start < self.end), NO_EPOCH)

    @property
    def has_epoch_without_batches(self) -> bool:
        return bool(self.epochs) and self.epochs[-1][1] >= self.end


class Diverging(NamedTuple):
    """Where a follower's log parts from its leader's, at the latest: the end of `epoch` in the leader's log."""

    epoch: int
    end: int


def end_of(epoch: int, log: Log) -> Diverging:
    """Return the newest epoch of the log that is not above `epoch`, and where it ends.

    Batches from before the first epoch are of NO_EPOCH.
    """
    found, end = NO_EPOCH, log.end
    for begun, start in log.epochs:
        if begun > epoch:
            end = start
            break
        found = begun
    return Diverging(found, end)


def divergence(leader: Log, offset: int, last_epoch: int, log_start: int) -> Diverging | None:
    """Return where a follower's log parts from its leader's; None if it agrees.

    The follower's log begins at `log_start` and ends at `offset`, after a batch of `last_epoch`. An epoch that the
    leader's log does not have is a divergence, however far that log goes on. An empty log agrees, and what is before
    the leader's first batch is not compared.
    """
    end = end_of(last_epoch, leader)
    if offset == log_start or (offset <= leader.start and last_epoch <= epoch_at(leader, leader.start)):
        return None if offset <= leader.end else end
    return end if end.end < offset or end.epoch != last_epoch else None


def epoch_at(log: Log, offset: int) -> int:
    """Return the epoch of the batch at `offset`, or that of the next one if that is at the end."""
    return next((epoch for epoch, start in reversed(log.epochs) if start <= offset), NO_EPOCH)


def cut_to(log: Log, diverging: Diverging, leader_start: int) -> int:
    """Return the offset to which a follower cuts its log. The cut may end below it, at the start of a batch."""
    return min(diverging.end, max(end_of(diverging.epoch, log).end, leader_start), log.end)


def with_epoch(epochs: Epochs, epoch: int, start: int) -> Epochs:
    """Return the epochs with one that begins at `start`, in the place of any that began there without a batch."""
    if epochs and epochs[-1][0] == epoch:
        return epochs
    return (*(each for each in epochs if each[1] < start), (epoch, start))
