"""Step 7 of the demo, a stream in Spark: it copies the late flights to another topic, and its driver is killed.

The next driver goes on from the checkpoint. Each micro-batch is one transaction: what the killed one has written and
not committed is never read, and what it has committed is not written again.

`python -m demo.late_flights HOST:PORT TOPIC OFFSETS DIRECTORY` copies until the end that the topic has now, OFFSETS in
each micro-batch.
"""

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from demo.checks import CheckFailed
from demo.flights import Flights
from demo.processes import DemoFailed, PythonProcess
from demo.spark import start_session
from warmlog import Admin, Consumer

LATE_MINUTES = 60
SINK = "late-flights"
PARTITIONS = 2
MICRO_BATCHES = 5
"""About: the kill comes after the first ones."""
POLL_S = 0.2


class Copied(NamedTuple):
    """How many late flights were in the topic when the driver was killed, and in the end."""

    at_kill: int
    records: int


def copy_late_flights(address: str, topic: str, flights: Flights, directory: Path) -> Copied:
    """Copy them with a kill in between, and compare. CheckFailed, DemoFailed."""
    asyncio.run(_create(address))
    program = ("demo.late_flights", address, topic, str(max(1, len(flights) // MICRO_BATCHES)), str(directory))
    with PythonProcess(*program, log_path=directory / "spark.log") as spark:
        while not (at_kill := asyncio.run(_late_flights(address)).total()):
            if spark.has_ended:
                raise DemoFailed("Spark ended before it had copied a flight")
            time.sleep(POLL_S)
    with PythonProcess(*program, log_path=directory / "spark.log") as spark:
        spark.wait("Spark")
    found = asyncio.run(_late_flights(address))
    expected: Counter[bytes | None] = Counter(
        value
        for value, delay in zip(flights.values, flights.departure_delays, strict=True)
        if delay is not None and delay >= LATE_MINUTES
    )
    if found != expected:
        missing, more = (expected - found).total(), (found - expected).total()
        raise CheckFailed(f"{SINK}: {missing} late flights are missing, {more} are there that should not be")
    return Copied(at_kill, found.total())


async def _create(address: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topic(SINK, partitions=PARTITIONS)


async def _late_flights(address: str) -> Counter[bytes | None]:
    """Return the values that committed readers get, and how often."""
    found: Counter[bytes | None] = Counter()
    async with Consumer(address, topics=[SINK], isolation="read_committed") as consumer:
        async for batch in consumer.batches(until="latest"):
            found.update(batch.values)
    return found


def main(address: str, topic: str, batch_offsets: str, directory: Path) -> None:
    spark = start_session(directory)
    reader = spark.readStream.format("warmlog").option("bootstrap.servers", address).option("subscribe", topic)
    flights = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", batch_offsets).load()
    delay = "get_json_object(cast(value as string), '$.dep_delay')"
    late = flights.where(f"cast({delay} as int) >= {LATE_MINUTES}").select("key", "value")
    writer = late.writeStream.format("warmlog").option("bootstrap.servers", address).option("topic", SINK)
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
