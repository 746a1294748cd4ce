"""Write some records and read them back: `python ten_lines.py [HOST:PORT]`."""

import asyncio
import sys

import warmlog


async def main(address: str) -> None:
    async with warmlog.Admin(address) as admin:
        await admin.create_topic("greetings", partitions=2, exist_ok=True)

    async with warmlog.Producer(address) as producer:
        metadata = await producer.send("greetings", b"hello", key=b"world")  # on disk when this returns
        print(f"written to partition {metadata.partition} at offset {metadata.offset}")

    async with warmlog.Consumer(address, topics=["greetings"]) as consumer:
        count = 0
        async for batch in consumer.batches(until="latest"):
            count += len(batch)
        print(f"{count} records")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400"))
