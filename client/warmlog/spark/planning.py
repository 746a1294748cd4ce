"""From options to tasks: asks the broker once what there is, and pins the ranges of one load()."""

import logging

from warmlog.errors import UnknownTopicOrPartition
from warmlog.ranges.discover import Discovery
from warmlog.ranges.offset_range import PartitionState
from warmlog.ranges.resolve import Resolved, resolve_ranges, starting_times
from warmlog.spark.plan import SizedRange, Task, plan_tasks
from warmlog.spark.read_options import ReadOptions, TopicChoice

_log = logging.getLogger("warmlog.spark")


def plan_batch(options: ReadOptions) -> list[Task]:
    """The tasks of a batch. Warns of what is lost, where the options allow that."""
    with Discovery(options.bootstrap) as discovery:
        states = chosen_states(discovery, options.topics)
        resolved = _resolve(discovery, states, options)
    for loss in resolved.losses:
        _log.warning("%s; skipped, as failOnDataLoss is false", loss)
    return plan_tasks([SizedRange.of_unknown_size(planned) for planned in resolved.ranges], options.limits)


def chosen_states(discovery: Discovery, choice: TopicChoice) -> list[PartitionState]:
    """The partitions that the options choose. UnknownTopicOrPartition for one that is named and does not exist."""
    topics = discovery.topics_like(choice.pattern) if choice.pattern else discovery.topics(choice.names)
    counts = {name: len(topic.partitions) for name, topic in topics.items()}
    missing = sorted(place for place in choice.explicit(counts) if place[1] >= counts[place[0]])
    if missing:
        topic, partition = missing[0]
        raise UnknownTopicOrPartition(f"topic {topic} has the partitions 0 to {counts[topic] - 1}, not {partition}")
    return discovery.states(topics, choice.includes)


def _resolve(discovery: Discovery, states: list[PartitionState], options: ReadOptions) -> Resolved:
    times = starting_times(options.bounds.starting, states)
    return resolve_ranges(states, options.bounds, discovery.offsets(times))
