"""Data that the broker's disk has lost, read by Spark: what can be is read, and the rest is an error or skipped."""

import asyncio
import re
from pathlib import Path

import pytest
from pyspark.errors.exceptions.base import PythonException
from pyspark.sql import SparkSession

from faults.lost import writing as lost
from faults.lost.damaging import DAMAGES, cut_at_a_batch, empty, remove
from faults.lost.judging import problems
from faults.lost.reading import Found, by_record, read_within_limit
from spark.test_export import export
from spark.test_read import load
from warmlog.spark.export.export import ExportOptions

CASES = [
    *(lost.Case(each, 1) for each in DAMAGES),
    *(lost.Case(each, lost.SEGMENTS - 1) for each in (empty, cut_at_a_batch, remove)),
]
WRITTEN = {offset: lost.value_of(offset) for offset in range(lost.END_OFFSET)}


def test_lost_offsets_are_an_error_that_names_them_or_are_skipped(spark: SparkSession, tmp_path: Path) -> None:
    with lost.start(tmp_path) as broker:
        for topic in (lost.PLAIN, lost.COMPACTED):
            lost.write(broker, topic, tmp_path / topic, CASES)
        broker.kill()
        for topic in (lost.PLAIN, lost.COMPACTED):
            lost.damage(broker, topic, tmp_path / topic, CASES)
        for _ in range(2):
            lost.start_again(broker)
            for topic in (lost.PLAIN, lost.COMPACTED):
                expected = asyncio.run(read_within_limit(by_record, broker.address, topic))
                found = Found()
                for row in load(spark, broker, topic, failOnDataLoss="false").orderBy("partition", "offset").collect():
                    found.add(row.partition, row.offset, bytes(row.value))
                assert found.records == expected.records
                assert not [
                    problem
                    for partition in range(len(CASES))
                    for problem in problems(
                        WRITTEN,
                        WRITTEN,
                        found.records[partition],
                        expected.told[partition],
                        may_have_gaps=topic == lost.COMPACTED,
                    )
                ]
                if expected.told[0]:
                    with pytest.raises(PythonException, match=re.escape(f"{topic}-0, offsets 15 to 29: ")):
                        load(spark, broker, topic, partitions="0").collect()
            broker.kill()
        lost.start_again(broker)
        expected = asyncio.run(read_within_limit(by_record, broker.address, lost.PLAIN))
        options = ExportOptions((broker.address,), lost.PLAIN, tmp_path / "export", fails_on_data_loss=False)
        lost_offsets = sum(end - first for told in expected.told.values() for first, end in told)
        assert sum(copied.lost_offsets for copied in export(spark, options)) == lost_offsets
