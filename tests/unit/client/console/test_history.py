"""Rates from counters, over restarts of the broker."""

from warmlog.console.history import MAX_SAMPLES, History
from warmlog_protocol.messages import DescribeStatusResponse, FlushCounts, TopicCounts


def status(time_ms: int, flushes: list[int] | None = None, **topics: tuple[int, int, int]) -> DescribeStatusResponse:
    counts = [FlushCounts("/data", [1000, 5000], flushes or [0, 0, 0])]
    return DescribeStatusResponse(
        True, [], time_ms, 3, 100, 1, counts, [TopicCounts(name, *counted) for name, counted in topics.items()]
    )


def test_one_sample_has_no_rates() -> None:
    history = History()
    history.add(status(0, t=(5, 500, 50)))
    assert not history.rates
    assert history.busiest == []


def test_rates_are_of_the_time_between_two_samples() -> None:
    history = History()
    history.add(status(1_000, [10, 0, 0], busy=(100, 1_000, 0), idle=(7, 7, 7)))
    history.add(status(3_000, [10, 100, 0], busy=(120, 1_400, 600), idle=(7, 7, 7), new=(2, 20, 0)))
    (rates,) = history.rates
    assert rates == (3_000, 11.0, 210.0, 300.0, 5.0, 3)
    assert [each.name for each in history.busiest] == ["busy", "new"]


def test_counters_that_fell_begin_again_at_zero() -> None:
    history = History()
    history.add(status(0, [50, 50, 50], t=(1_000, 1_000, 1_000)))
    history.add(status(1_000, [1, 0, 0], t=(10, 20, 30)))
    assert history.rates[0][1:5] == (10.0, 20.0, 30.0, 1.0)


def test_a_clock_that_goes_back_gives_no_rates() -> None:
    history = History()
    history.add(status(2_000, t=(1, 1, 1)))
    history.add(status(1_000, t=(2, 2, 2)))
    assert not history.rates


def test_an_hour_is_kept_and_a_part_of_it_is_shown() -> None:
    history = History()
    for number in range(MAX_SAMPLES + 10):
        history.add(status(number * 2_000, t=(number, number, 0)))
    assert len(history.rates) == MAX_SAMPLES
    assert len(history.within(60)) == 30
