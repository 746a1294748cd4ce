"""Histograms and the counters by topic."""

from warmlog_broker.runtime.counters import Counters, Histogram


def test_a_value_belongs_to_the_first_interval_whose_bound_is_not_below_it() -> None:
    histogram = Histogram((1, 2, 4))
    for value in (0.5, 1, 1.5, 4, 4.5, 100):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 2]
    assert histogram.total == 111.5


def test_counters_of_topics_that_are_gone_are_dropped() -> None:
    counters = Counters()
    for topic in ("kept", "gone"):
        counters.appended_records[topic] += 1
        counters.fetched_bytes[topic] += 1
    counters.forget_topic("gone")
    counters.forget_topic("never counted")
    assert counters.appended_records == counters.fetched_bytes == {"kept": 1}
