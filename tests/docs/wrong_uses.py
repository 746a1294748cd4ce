"""Thirty wrong uses of the clients. mypy finds an error in each line that ends in `# error`, and in no other.

Never run: `test_typing.py` reads what mypy says.
"""

from datetime import timedelta

import warmlog
from warmlog import blocking
from warmlog.ranges.arrow_reader import arrow_reader

ADDRESS = "127.0.0.1:7400"


async def producers() -> None:
    warmlog.Producer(7400)  # error
    warmlog.Producer(ADDRESS, linger=5)  # error
    warmlog.Producer(ADDRESS, linger_ms="5")  # error
    warmlog.Producer(ADDRESS, batch_bytes="256k")  # error
    warmlog.Producer(ADDRESS, idempotent="yes")  # error
    warmlog.Producer(ADDRESS, connect_timeout_ms="10s")  # error
    warmlog.Producer(ADDRESS, client_id="me")  # error
    producer = warmlog.Producer(ADDRESS, client_name="me", connect_timeout_ms=1_000)
    producer.send("topic", "text")  # error
    texts = warmlog.Producer(ADDRESS, value_serializer=warmlog.serializers.text)
    texts.send("topic", "text")
    texts.send("topic", b"value")  # error
    texts.send("topic", "text", key="key")  # error
    objects = warmlog.Producer(ADDRESS, value_serializer=warmlog.serializers.json, partitioner=lambda key, count: 0)
    objects.send("topic", {"any": "object"}, key=b"key")
    warmlog.Producer(ADDRESS, partitioner=lambda key: 0)  # error
    warmlog.Producer(ADDRESS, expired="never")  # error
    producer.send("topic", 5)  # error
    producer.send("topic")  # error
    producer.send(b"topic", b"value")  # error
    producer.send("topic", b"value", key="key")  # error
    producer.send("topic", b"value", partition="0")  # error
    producer.send("topic", b"value", timestamp_ms=1.5)  # error
    producer.send("topic", b"value", headers=[("name", "value")])  # error
    await producer.send_many("topic", ["text"])  # error
    await producer.send_many("topic", [b"value"], keys=["key"])  # error
    metadata = await producer.send("topic", b"value")
    metadata.offsett  # error


async def consumers() -> None:
    warmlog.Consumer(ADDRESS, topics="topic")  # found at run time: a str is a sequence of str
    warmlog.Consumer(ADDRESS, topics=[1])  # error
    warmlog.Consumer(ADDRESS, group_id="group")  # error
    warmlog.Consumer(ADDRESS, topics=["topic"], start=1.5)  # error
    warmlog.Consumer(ADDRESS, topics=["topic"], start={0: 5})  # error
    warmlog.Consumer(ADDRESS, partitions=[0])  # error
    consumer = warmlog.Consumer(ADDRESS, topics=["topic"], start={"topic-0": 5})
    consumer.seek("topic", "0", 5)  # error
    for record in consumer.records():  # error
        print(record)
    async for record in consumer.records():
        record.value.decode()  # error


async def admins() -> None:
    admin = warmlog.Admin(ADDRESS)
    await admin.create_topic("topic", partitions="4")  # error
    await admin.create_topic("topic", configs={"retention.ms": [1]})  # error
    await admin.create_topic("topic", configs={"retention.ms": timedelta(days=7)}, exist_ok=True)
    await admin.delete_records("topic")  # error


def without_asyncio() -> None:
    blocking.Prodducer(ADDRESS)  # error
    blocking.Consumer(ADDRESS, topics=["topic"], group_id="group")  # error
    with blocking.Producer(ADDRESS) as producer:
        print(producer.send("topic", b"value").offset)  # error
        print(producer.send("topic", b"value").result().offset)


def tables() -> None:
    arrow_reader(ADDRESS, 5)  # error
    arrow_reader(ADDRESS, ["topic"], columns=[1])  # error
