"""A driver that runs many streams, each into a topic of its own: `python -m spark.killed.driver` (see `main`).

A stream that has failed is started again from its checkpoint, as a supervisor would. Tasks are slow at times, so that
Spark runs them a second time beside the first.
"""

import argparse
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

ROWS_A_BATCH = 40
TASKS = 2
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.task.duration.threshold": "1s",
    "spark.sql.streaming.minBatchesToRetain": "1000000",
}


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass the batches on; one task in ten waits in the middle."""
    for batch in batches:
        half = batch.num_rows // 2
        yield batch.slice(0, half)
        if random.random() < 0.1:
            time.sleep(random.uniform(0.5, 3))
        yield batch.slice(half)


def rows(session: SparkSession) -> DataFrame:
    """Return an endless stream: micro-batch n has the values from n * ROWS_A_BATCH on."""
    source = session.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS_A_BATCH, numPartitions=TASKS)
    values = source.load().selectExpr("cast(value as string) as value")
    return values.mapInArrow(slowly, values.schema)


def start(session: SparkSession, broker: str, topic: str, checkpoint: Path, *, ends: bool) -> StreamingQuery:
    """Start a stream, or go on with it; with `ends` it does what there is to do, and ends."""
    writer = rows(session).writeStream.format("warmlog").option("bootstrap.servers", broker).option("topic", topic)
    writer = writer.option("transactionTimeoutMs", "60000").option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if ends else writer.trigger(processingTime="0 seconds")).start()


def main() -> None:
    """Run the streams until killed, or with --ends until each has ended without an error."""
    parser = argparse.ArgumentParser()
    for name in ("broker", "directory", "topics"):
        parser.add_argument(name)
    parser.add_argument("--ends", action="store_true")
    options = parser.parse_args()
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    session = SparkSession.builder.master("local-cluster[2,2,512]").config(map=SETTINGS).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    running: dict[str, StreamingQuery | None] = dict.fromkeys(options.topics.split(","))
    while running:
        for topic, query in list(running.items()):
            if query is not None and query.isActive:
                continue
            if query is not None and options.ends and query.exception() is None:
                del running[topic]
                continue
            if query is not None:
                print(f"{topic} ended: {query.exception()}", flush=True)
            checkpoint = Path(options.directory, topic)
            running[topic] = start(session, options.broker, topic, checkpoint, ends=options.ends)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
