"""Each record exactly once into SQLite: `python exactly_once_sqlite.py [HOST:PORT]`.

The results and the positions are written in one transaction of the database.
"""

import sqlite3
import sys
from contextlib import closing

from warmlog.blocking import Admin, Consumer, Producer

TOPIC = "visits"


def write_visits(address: str, count: int) -> None:
    """Some input."""
    with Admin(address) as admin:
        admin.create_topic(TOPIC, partitions=2, exist_ok=True)
    with Producer(address) as producer:
        pages = [b"/page/%d" % (number % 7) for number in range(count)]
        producer.send_many(TOPIC, pages, keys=pages)


def prepare(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE IF NOT EXISTS visits (page TEXT PRIMARY KEY, count INTEGER)")
    database.execute("CREATE TABLE IF NOT EXISTS positions (part TEXT PRIMARY KEY, next_offset INTEGER)")


def copy(address: str, database: sqlite3.Connection) -> None:
    """Count what is new."""
    start: dict[str, int] = dict(database.execute("SELECT part, next_offset FROM positions"))
    with Consumer(address, topics=[TOPIC], start=start) as consumer:
        for batch in consumer.batches(until="latest"):
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


if __name__ == "__main__":
    broker = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400"
    write_visits(broker, 1000)
    with closing(sqlite3.connect("visits.db")) as connection:
        prepare(connection)
        copy(broker, connection)
        copy(broker, connection)
        print(connection.execute("SELECT sum(count) FROM visits").fetchone()[0], "visits")
