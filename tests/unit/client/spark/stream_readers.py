"""A stream reader as Spark ships it, planning against a broker that is not there."""

import pickle

from pyspark.sql.types import BinaryType, StructField, StructType

from unit.client.spark.stream.test_planner import FakeDiscovery, planner_of
from warmlog.spark.source import WarmlogDataSource
from warmlog.spark.stream.reader import WarmlogStreamReader

SCHEMA = StructType([StructField("value", BinaryType())])


def reader_of(broker: FakeDiscovery, **options: str) -> WarmlogStreamReader:
    given = {"bootstrap.servers": "b:1", "subscribe": "t", "startingOffsets": "earliest", **options}
    reader = WarmlogDataSource(given).streamReader(SCHEMA)
    reader = pickle.loads(pickle.dumps(reader))  # as it comes to the process that plans
    assert isinstance(reader, WarmlogStreamReader)
    reader._opened = planner_of(broker, **{name: value for name, value in given.items() if "." not in name})
    return reader
