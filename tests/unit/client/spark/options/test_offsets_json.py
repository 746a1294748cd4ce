"""Offsets in the JSON of Spark's Kafka connector."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.spark.options.offsets_json import offsets_document, offsets_of, parse_offsets
from warmlog_transport.responses import TopicPartition

partitions = st.tuples(st.text(min_size=1, max_size=5), st.integers(0, 300))
offsets_by_partition = st.dictionaries(partitions, st.integers(-2, 2**63 - 1), max_size=20)


@given(offsets_by_partition, st.randoms(use_true_random=False))
def test_equal_offsets_have_the_same_text_in_whatever_order_they_came(
    offsets: dict[TopicPartition, int], shuffle: random.Random
) -> None:
    items = list(offsets.items())
    shuffle.shuffle(items)
    text = json.dumps(offsets_document(dict(items)))
    assert text == json.dumps(offsets_document(offsets))
    assert parse_offsets(text) == offsets
    assert offsets_of(json.loads(text)) == offsets_of(offsets_document(offsets)) == offsets


def test_topics_are_sorted_by_name_and_partitions_by_number() -> None:
    document = offsets_document({("b", 10): 1, ("b", 9): 2, ("a", 0): 3})
    assert json.dumps(document) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'


@pytest.mark.parametrize(
    "text", ["", "[]", "5", '{"t": 5}', '{"t": {"x": 1}}', '{"t": {"-1": 1}}', '{"t": {"0": "1"}}']
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="JSON like"):
        parse_offsets(text)
