"""What reading does for the process that it runs in."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from spark import frozen_source
from spark.topics import Record, Topics

MODULES = 10_000
"""Objects at least that pyspark and pyarrow have when they are loaded."""
READ_NOTHING = """
import gc
before = gc.get_freeze_count()
from warmlog.ranges.read_settings import Projection, ReadSettings
from pyspark.sql.datasource import InputPartition
from warmlog.spark.read.range_tasks import read_partition
assert not list(read_partition(InputPartition(()), Projection(("value",)), ReadSettings()))
print(gc.get_freeze_count() - before)
"""
WRITE_NOTHING = """
import gc, os, sys, types
sys.modules["pyspark.worker"] = types.ModuleType("pyspark.worker")
from pyspark.sql.types import BinaryType, StructType
from warmlog.spark.source import WarmlogDataSource
options = {"bootstrap.servers": os.environ["BROKER"], "topic": "frozen-by-writing"}
writer = WarmlogDataSource(options).writer(StructType().add("value", BinaryType()), overwrite=False)
before = gc.get_freeze_count()
assert writer.write(iter(())).records == 0
print(gc.get_freeze_count() - before)
"""
HIDE_TWICE = """
import gc, sys, types, weakref
sys.modules["pyspark.worker"] = types.ModuleType("pyspark.worker")
from warmlog.spark.read.range_tasks import hide_modules_from_collector
class Cycle:
    def __init__(self):
        self.itself = self
dead, before = weakref.ref(Cycle()), gc.get_freeze_count()
hide_modules_from_collector()
assert dead() is None
once = gc.get_freeze_count()
kept = [[number] for number in range(1000)]
hide_modules_from_collector()
assert gc.get_freeze_count() == once
print(once - before)
"""


@pytest.fixture
def frozen_format(spark: SparkSession) -> Iterator[str]:
    cloudpickle.register_pickle_by_value(frozen_source)
    spark.dataSource.register(frozen_source.FrozenSource)
    yield frozen_source.FrozenSource.name()
    cloudpickle.unregister_pickle_by_value(frozen_source)


def test_the_modules_of_a_spark_worker_are_hidden_from_the_collector(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, frozen_format: str
) -> None:
    topics.create("frozen")
    topics.fill("frozen", 0, [Record(None, b"a")] * 3)
    reader = spark.read.format(frozen_format).option("bootstrap.servers", broker.address)
    ((hidden,),) = reader.option("subscribe", "frozen").option("columns", "offset").load().collect()
    assert hidden > MODULES


def printed(program: str, **environment: str) -> int:
    usual = {name: text for name, text in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=usual | environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_nothing_is_hidden_in_a_process_that_is_not_sparks() -> None:
    assert printed(READ_NOTHING, SPARK_REUSE_WORKER="1") == 0


def test_garbage_is_not_hidden_nor_what_comes_later_nor_where_workers_are_not_used_again() -> None:
    assert printed(HIDE_TWICE, SPARK_REUSE_WORKER="1") > 0
    assert printed(HIDE_TWICE.replace("assert dead() is None", "")) == 0


def test_a_worker_that_writes_hides_its_modules_as_well(broker: BrokerProcess, topics: Topics) -> None:
    topics.create("frozen-by-writing")
    assert printed(WRITE_NOTHING, SPARK_REUSE_WORKER="1", BROKER=broker.address) > MODULES
