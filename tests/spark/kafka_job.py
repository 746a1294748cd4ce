"""A Spark job as people have it for Kafka; that is all it knows. The format's name and the servers are arguments.

    spark-submit kafka_job.py FORMAT SERVERS DIRECTORY

It writes orders, reads them in bulk and as a stream that writes their lengths; prints what it found as JSON. Its
topics, orders and totals, must be there.
"""

import json
import sys

from pyspark.sql import SparkSession

source, servers, directory = sys.argv[1:]
spark = SparkSession.builder.appName("orders").getOrCreate()
found = {}

orders = spark.range(1_000).selectExpr(
    "concat('customer-', id % 7) as key",
    "to_json(named_struct('id', id, 'amount', id * 1.5)) as value",
    "array(named_struct('key', 'source', 'value', cast('web' as binary))) as headers",
)
orders.write.format(source).option("kafka.bootstrap.servers", servers).option("topic", "orders").mode("append").save()

frame = (
    spark.read.format(source)
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .option("endingOffsets", "latest")
    .option("includeHeaders", "true")
    .option("failOnDataLoss", "true")
    .option("minPartitions", "4")
    .option("fetchOffset.numRetries", "5")
    .option("kafkaConsumer.pollTimeoutMs", "60000")
    .load()
)
found["schema"] = frame.schema.simpleString()
order = "from_json(cast(value as string), 'id long, amount double') as o"
sums = frame.selectExpr("cast(key as string) as key", order)
totals = sums.groupBy("key").agg({"o.amount": "sum"}).toDF("key", "total")
found["sums"] = {row.key: row.total for row in totals.collect()}
headers = frame.selectExpr("explode(headers) as h").selectExpr("h.key", "cast(h.value as string)")
found["headers"] = [list(row) for row in headers.distinct().collect()]
found["offsets"] = frame.selectExpr("partition", "offset").distinct().count()
found["types"] = [row[0] for row in frame.select("timestampType").distinct().collect()]

first = (
    spark.read.format(source)
    .option("kafka.bootstrap.servers", servers)
    .option("assign", '{"orders": [0, 1]}')
    .option("startingOffsets", '{"orders": {"0": -2, "1": -2}}')
    .option("endingOffsets", '{"orders": {"0": 5, "1": 7}}')
    .load()
)
found["first"] = sorted([row.partition, row.offset] for row in first.select("partition", "offset").collect())
later = frame.selectExpr("max(timestamp) + interval 1 minute as t").collect()[0].t
none = (
    spark.read.format(source)
    .option("kafka.bootstrap.servers", servers)
    .option("subscribePattern", "ord.*")
    .option("startingTimestamp", str(round(later.timestamp() * 1000)))
    .option("startingOffsetsByTimestampStrategy", "latest")
    .load()
)
found["none"] = none.count()

stream = (
    spark.readStream.format(source)
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "300")
    .load()
)
lengths = stream.selectExpr("key", "cast(length(value) as string) as value")
query = (
    lengths.writeStream.format(source)
    .option("kafka.bootstrap.servers", servers)
    .option("topic", "totals")
    .option("checkpointLocation", f"{directory}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
found["batches"] = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
with open(f"{directory}/checkpoint/offsets/0") as offsets:
    found["checkpoint"] = sorted(json.loads(offsets.readlines()[2])["orders"])
written = spark.read.format(source).option("kafka.bootstrap.servers", servers).option("subscribe", "totals").load()
found["written"] = [written.count(), written.selectExpr("sum(int(cast(value as string)))").collect()[0][0]]
print(json.dumps(found, sort_keys=True))
spark.stop()
