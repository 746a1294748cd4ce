"""One producer for many threads, as in a web server without asyncio: `python threads.py [HOST:PORT]`."""

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from warmlog.blocking import Admin, Consumer, Producer

TOPIC = "clicks"


def handle(producer: Producer, number: int) -> int:
    """What a request does: it ends once the record is on disk, and returns its offset."""
    return producer.send(TOPIC, b"click %d" % number).result(timeout=30).offset


def main(address: str) -> None:
    with Admin(address) as admin:
        admin.create_topic(TOPIC, exist_ok=True)
    with Producer(address) as producer, ThreadPoolExecutor(8) as threads:
        offsets = sorted(threads.map(partial(handle, producer), range(200)))
    with Consumer(address, topics=[TOPIC], start=offsets[0]) as consumer:
        found = sum(1 for record in consumer.records(until="latest") if record.offset in offsets)
    print(f"{found} of {len(offsets)} clicks are in the log")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400")
