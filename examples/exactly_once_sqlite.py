"""Each record exactly once into SQLite: `python exactly_once_sqlite.py [HOST:PORT]`.

The results and the positions are written in one transaction of the database.
"""

import asyncio
import sqlite3
import sys
from contextlib import closing

import warmlog

TOPIC = "visits"


async def write_visits(address: str, count: int) -> None:
    """Some input."""
    async with warmlog.Admin(address) as admin:
        await admin.create_topic(TOPIC, partitions=2, exist_ok=True)
    async with warmlog.Producer(address) as producer:
        pages = [b"/page/%d" % (number % 7) for number in range(count)]
        await producer.send_many(TOPIC, pages, keys=pages)


def prepare(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE IF NOT EXISTS visits (page TEXT PRIMARY KEY, count INTEGER)")
    database.execute("CREATE TABLE IF NOT EXISTS positions (part TEXT PRIMARY KEY, next_offset INTEGER)")


async def copy(address: str, database: sqlite3.Connection) -> None:
    """Count what is new."""
    start: dict[str, int] = dict(database.execute("SELECT part, next_offset FROM positions"))
    async with warmlog.Consumer(address, topics=[TOPIC], start=start) as consumer:
        async for batch in consumer.batches(until="latest"):
            with database:  # commits at its end, or rolls back
                for value in batch.values:
                    database.execute(
                        "INSERT INTO visits VALUES (?, 1) ON CONFLICT (page) DO UPDATE SET count = count + 1",
                        ((value or b"").decode(),),
                    )
                database.execute(
                    "INSERT INTO positions VALUES (?, ?) "
                    "ON CONFLICT (part) DO UPDATE SET next_offset = excluded.next_offset",
                    (f"{batch.topic}-{batch.partition}", batch.next_offset),
                )


async def main(address: str) -> None:
    await write_visits(address, 1000)
    with closing(sqlite3.connect("visits.db")) as database:
        prepare(database)
        await copy(address, database)
        await copy(address, database)
        print(database.execute("SELECT sum(count) FROM visits").fetchone()[0], "visits")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400"))
