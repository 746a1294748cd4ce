"""Kafka's rules for the names of topics."""

import pytest

from warmlog_broker.metadata.topic_names import check_topic_name, colliding_topic
from warmlog_protocol.errors import InvalidTopic


@pytest.mark.parametrize("name", ["a", "flights", "a.b_c-D9", "...", "a" * 249, "x-delete", "-", "_"])
def test_a_legal_name_passes(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "a/b", "ä", "a\n", "a\0", "../x", "a:b"])
def test_an_illegal_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic_name(name)


def test_the_message_of_a_very_long_name_is_short() -> None:
    with pytest.raises(InvalidTopic) as caught:
        check_topic_name("x" * 100_000)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("name", "existing", "expected"),
    [
        ("a.b", ["a_b"], "a_b"),
        ("a_b", ["x", "a.b"], "a.b"),
        ("a.b_c", ["a_b.c"], "a_b.c"),
        ("a.b", ["a.b"], None),
        ("a.b", ["ab", "a-b"], None),
        ("ab", ["a.b"], None),
    ],
)
def test_names_that_differ_in_dot_and_underscore_alone_collide(
    name: str, existing: list[str], expected: str | None
) -> None:
    assert colliding_topic(name, existing) == expected
