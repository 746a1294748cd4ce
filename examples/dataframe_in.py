"""A data frame into a topic, and the topic as a data frame: `python dataframe_in.py [HOST:PORT]`."""

import asyncio
import json
import sys

import pandas as pd

import warmlog
from warmlog import arrow_reader

TOPIC = "cities"


async def write(address: str, frame: pd.DataFrame) -> None:
    """Send each row as a record: a JSON object, with the city as the key."""
    async with warmlog.Admin(address) as admin:
        await admin.create_topic(TOPIC, exist_ok=True)
    async with warmlog.Producer(address) as producer:
        await producer.send_frame(TOPIC, frame, key="city")


def read(address: str) -> pd.DataFrame:
    """Return the fields of all records."""
    with arrow_reader(address, [TOPIC], columns=["value"], as_text=["value"]) as reader:
        return pd.DataFrame([json.loads(value) for value in reader.read_all()["value"].to_pylist()])


if __name__ == "__main__":
    broker = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400"
    cities = pd.DataFrame({"city": ["Oslo", "Rome", "Lima"], "people": [710_000, 2_750_000, 10_090_000]})
    asyncio.run(write(broker, cities))
    print(read(broker).groupby("city")["people"].max())
