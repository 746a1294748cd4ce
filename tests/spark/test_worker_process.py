"""What reading does for the process that it runs in."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from broker_process import BrokerProcess
from spark import frozen_source
from spark.topics import Record, Topics

pytestmark = [  # PySpark leaves sockets of its own to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MODULES = 10_000
"""Objects at least that pyspark and pyarrow have when they are loaded."""
READ_NOTHING = """
import gc
from pyspark.sql.datasource import InputPartition
from warmlog.ranges.projection import Projection
from warmlog.ranges.read_settings import ReadSettings
from warmlog.spark.range_tasks import RangesPartition, read_partition
assert not list(read_partition(RangesPartition([]), Projection(("value",)), ReadSettings()))
print(gc.get_freeze_count())
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


def test_nothing_is_hidden_in_a_process_that_is_not_sparks() -> None:
    done = subprocess.run([sys.executable, "-c", READ_NOTHING], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 0
