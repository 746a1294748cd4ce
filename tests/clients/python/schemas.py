"""Writes and reads records by schemas of a registry: ADDRESS REGISTRY TOPIC TASK; prints what it has read."""

import json
import sys

from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

address, registry_url, topic, task = sys.argv[1:]
registry = SchemaRegistryClient({"url": registry_url})
context = SerializationContext(topic, MessageField.VALUE)
FIRST = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "count", "type": "int", "default": 1}]}


def write(schema: dict, order: dict) -> None:
    producer = Producer({"bootstrap.servers": address})
    producer.produce(topic, AvroSerializer(registry, json.dumps(schema))(order, context))
    assert producer.flush(30) == 0


if task == "register":
    write(FIRST, {"item": "tea"})
elif task == "evolve":
    write(SECOND, {"item": "coffee", "count": 2})
else:
    reading = AvroDeserializer(registry, json.dumps(SECOND))
    consumer = Consumer({"bootstrap.servers": address, "group.id": "python", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    for _ in range(2):
        message = consumer.poll(30)
        print(json.dumps(reading(message.value(), context)))
    consumer.close()
    print(len(registry.get_versions(f"{topic}-value")))
