"""A Spark job that carries out steps in their order and prints what it has read, as JSON.

    spark-submit crossing_job.py STEPS

STEPS is a file of JSON, a list of pairs: the rows to be written in this order, or null to read; and a format with its
options. A row is key, value, headers and, if the format takes one, a timestamp in ms; one that was read has its offset
before these. Bytes are in base64.
"""

import base64
import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

SCHEMA = "key binary, value binary, headers array<struct<key:string,value:binary>>, ms bigint"
COLUMNS = ["key", "value", "headers", "timestamp_millis(ms) as timestamp"]

spark = SparkSession.builder.appName("crossing").getOrCreate()


def packed(data):
    return None if data is None else base64.b64encode(data).decode()


def unpacked(text):
    return None if text is None else base64.b64decode(text)


found = []
for rows, options in json.loads(Path(sys.argv[1]).read_text()):
    source = options.pop("format")
    if rows is None:
        read = spark.read.format(source).options(includeHeaders="true", **options).load()
        columns = read.selectExpr("offset", "key", "value", "headers", "unix_millis(timestamp) as ms").orderBy("offset")
        found.append([])
        for row in columns.collect():
            headers = [(header.key, packed(header.value)) for header in row.headers or []]
            found[-1].append((row.offset, packed(row.key), packed(row.value), headers, row.ms))
        continue
    unpacked_rows = [
        (unpacked(key), unpacked(value), [(name, unpacked(text)) for name, text in headers], ms)
        for key, value, headers, ms in rows
    ]
    columns = COLUMNS if source == "warmlog" else COLUMNS[:3]
    frame = spark.createDataFrame(unpacked_rows, SCHEMA).coalesce(1).selectExpr(*columns)
    frame.write.format(source).options(**options).mode("append").save()
print(json.dumps(found))
spark.stop()
