"""The counters of topics, as they are published."""

from warmlog_broker.metrics.families import OTHER_TOPICS, TopicCounters


def test_what_a_topic_gets_before_its_first_scrape_is_counted_under_other_topics_by_the_next() -> None:
    counters = TopicCounters()
    assert counters.by_label({"new": 5}, {}) == {}
    assert counters.by_label({"new": 7}, {"new": OTHER_TOPICS}) == {OTHER_TOPICS: 7}
