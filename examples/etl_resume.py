"""Sum up orders as they come; after a restart continue where the last run ended: `python etl_resume.py [HOST:PORT]`.

The sums and the positions are in one file, which is replaced as a whole.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import warmlog

TOPIC = "etl-orders"
STATE = Path("etl_state.json")


async def write_orders(address: str, count: int) -> None:
    """Some input: as many orders, of three customers."""
    async with warmlog.Admin(address) as admin:
        await admin.create_topic(TOPIC, partitions=3, exist_ok=True)
    async with warmlog.Producer(address) as producer:
        for number in range(count):
            customer = f"customer {number % 3}"
            producer.send(TOPIC, json.dumps({"customer": customer, "euros": 10}).encode(), key=customer.encode())
            await producer.drain()


def load() -> dict[str, Any]:
    """The state of the last run, or that of the first."""
    if not STATE.exists():
        return {"positions": {}, "sums": {}}
    state: dict[str, Any] = json.loads(STATE.read_text())
    return state


def store(state: dict[str, Any]) -> None:
    """Replace the state by a new one, so that a crash leaves the old one or the new one."""
    new = STATE.with_suffix(".new")
    new.write_text(json.dumps(state))
    new.replace(STATE)


async def process(address: str) -> dict[str, int]:
    """Process what is new, and return the sums."""
    state = load()
    sums: dict[str, int] = state["sums"]
    async with warmlog.Consumer(address, topics=[TOPIC], start=state["positions"]) as consumer:
        async for batch in consumer.batches(until="latest"):
            for value in batch.values:
                order = json.loads(value or b"{}")
                sums[order["customer"]] = sums.get(order["customer"], 0) + order["euros"]
            state["positions"] = consumer.positions()
            store(state)
    return dict(sorted(sums.items()))


async def main(address: str) -> None:
    await write_orders(address, 300)
    print(await process(address))
    print(await process(address), "again: nothing is counted twice")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400"))
