"""Where two logs part, and what a follower cuts, against lists of epochs."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from warmlog_broker.replication.alignment import Log, cut_to, divergence, with_epoch


def after_cut(log: Log, end: int) -> Log:
    """Return the bounds after a cut that ends at `end`, which is durable."""
    return replace(
        log,
        end=end,
        flushed=min(log.flushed, end),
        high_watermark=min(log.high_watermark, end),
        epochs=tuple(each for each in log.epochs if each[1] < end),
        truncations=log.truncations + 1,
    )


def log_of(epochs: list[int], start: int = 0) -> Log:
    """Return the bounds of a log with a batch of each of these epochs, of which those before `start` are deleted."""
    begun: tuple[tuple[int, int], ...] = ()
    for offset, epoch in enumerate(epochs):
        if epoch >= 0:
            begun = with_epoch(begun, epoch, offset)
    below = [epoch for epoch, at in begun if at <= start]
    kept = ((below[-1], start),) if below and start else ()
    return Log(start, len(epochs), epochs=(*kept, *(each for each in begun if each[1] > start or not start)))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Logs of a leader and a follower: (epoch, offset) names one batch, so after they part no pair is in both."""
    common = sorted(draw(st.lists(st.integers(-1, 5), max_size=6)))
    last = common[-1] if common else -1
    mine = draw(st.lists(st.integers(0, 4), max_size=6))
    other = draw(st.lists(st.integers(0, 4), max_size=6))
    leader = common + sorted(last + 1 + 2 * each for each in mine)
    follower = common + sorted(last + 2 + 2 * each for each in other)
    return leader, follower, len(common)


@given(histories(), st.integers(0, 3))
def test_a_follower_cuts_until_it_agrees_and_never_what_both_have(
    logs: tuple[list[int], list[int], int], start: int
) -> None:
    leader_epochs, follower_epochs, common = logs
    start = min(start, common)
    leader, follower = log_of(leader_epochs, start), log_of(follower_epochs)
    for _ in range(20):
        found = divergence(leader, follower.end, follower.last_epoch, follower.start)
        if found is None:
            break
        end = cut_to(follower, found, leader.start)
        assert common <= end < follower.end
        follower = after_cut(follower, end)
    assert follower_epochs[start : follower.end] == leader_epochs[start : follower.end]


def test_an_epoch_that_the_leader_does_not_have_is_a_divergence_below_its_end() -> None:
    leader, follower = log_of([4, 4, 4, 4, 6]), log_of([4, 4, 5])
    found = divergence(leader, follower.end, follower.last_epoch, 0)
    assert found is not None
    assert cut_to(follower, found, 0) == 2


def test_batches_without_an_epoch_agree_only_before_the_first_epoch() -> None:
    leader = log_of([-1, -1, 3])
    assert divergence(leader, 2, -1, 0) is None
    assert divergence(leader, 3, -1, 0) == (-1, 2)


def test_an_empty_log_agrees_wherever_it_begins() -> None:
    leader = log_of([1, 1, 2, 2], start=1)
    assert divergence(leader, 3, -1, 3) is None
    assert divergence(leader, 9, -1, 9) is not None
