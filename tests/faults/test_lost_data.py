"""Data that the disk has lost: readers hang nowhere, are told each lost range once, and get all the rest.

Every way to lose data, at each kind of segment, on plain and on compacted topics, after a clean stop and after a kill,
and in every way to read (Spark's: tests/spark/test_lost_data.py). Once more after another start, for which the segment
that is active then is as it should be: by the two readers that the ways stand on.
"""

import asyncio
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from faults.lost import writing as lost
from faults.lost.judging import problems
from faults.lost.reading import WAYS, Found, by_batch, by_range, read_within_limit

WRITTEN = {offset: lost.value_of(offset) for offset in range(lost.END_OFFSET)}


def read(broker: BrokerProcess, topic: str, way: object = by_batch) -> Found:
    return asyncio.run(read_within_limit(way, broker.address, topic))  # type: ignore[arg-type]


def judge(found: Found, before: Found, topic: str, what: str, *, written: dict[int, bytes] = WRITTEN) -> list[str]:
    """What is wrong with the partitions, each in a line."""
    return [
        f"{topic}-{partition} ({case}), {what}: {problem}; told: {found.told[partition]}"
        for partition, case in enumerate(lost.CASES)
        for problem in problems(
            written,
            [offset for offset, _ in before.records[partition]],
            found.records[partition],
            found.told[partition],
            may_have_gaps=topic == lost.COMPACTED,
        )
    ]


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
def test_every_lost_range_is_told_once_and_everything_else_is_read(quick_path: Path, is_clean: bool) -> None:
    with lost.start(quick_path) as broker:
        for topic in (lost.PLAIN, lost.COMPACTED):
            lost.write(broker, topic, quick_path / topic)
        before = {topic: read(broker, topic) for topic in (lost.PLAIN, lost.COMPACTED)}
        assert not before[lost.PLAIN].told
        assert not before[lost.COMPACTED].told
        if is_clean:
            assert broker.terminate() == 0
        else:
            broker.kill()
        for topic in (lost.PLAIN, lost.COMPACTED):
            lost.damage(broker, topic, quick_path / topic)
        lost.start_again(broker)
        found = []
        for attempt, ways in (("after the damage", WAYS), ("after another start", (by_batch, by_range))):
            for topic in (lost.PLAIN, lost.COMPACTED):
                told = []
                for way in ways:
                    result = read(broker, topic, way)
                    told.append(result.told)
                    found += judge(result, before[topic], topic, f"{way.__name__} {attempt}")
                assert [each == told[0] for each in told] == [True] * len(told), "each way is told the same"
            broker.kill()
            lost.start_again(broker)
        assert not found, "\n".join(found)
        for topic in (lost.PLAIN, lost.COMPACTED):
            appended = lost.append_one(broker, topic, b"appended")
            assert appended == [lost.END_OFFSET] * len(lost.CASES)
            result = read(broker, topic)
            assert [records[-1] for _, records in sorted(result.records.items())] == [
                (offset, b"appended") for offset in appended
            ]
