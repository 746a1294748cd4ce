"""Sum up orders as they come; after a restart continue where the last run ended: `python etl_resume.py [HOST:PORT]`.

The sums and the positions are in one file, which is replaced as a whole.
"""

import json
import sys
from pathlib import Path
from typing import Any

from warmlog.blocking import Admin, Consumer, Producer

TOPIC = "etl-orders"
STATE = Path("etl_state.json")


def write_orders(address: str, count: int) -> None:
    """Some input: as many orders, of three customers."""
    with Admin(address) as admin:
        admin.create_topic(TOPIC, partitions=3, exist_ok=True)
    with Producer(address) as producer:
        for number in range(count):
            customer = f"customer {number % 3}"
            producer.send(TOPIC, json.dumps({"customer": customer, "euros": 10}).encode(), key=customer.encode())


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


def process(address: str) -> dict[str, int]:
    """Process what is new, and return the sums."""
    state = load()
    sums: dict[str, int] = state["sums"]
    with Consumer(address, topics=[TOPIC], start=state["positions"]) as consumer:
        for batch in consumer.batches(until="latest"):
            for value in batch.values:
                order = json.loads(value or b"{}")
                sums[order["customer"]] = sums.get(order["customer"], 0) + order["euros"]
            state["positions"][f"{batch.topic}-{batch.partition}"] = batch.next_offset
            store(state)
    return sums


if __name__ == "__main__":
    broker = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400"
    write_orders(broker, 300)
    print(process(broker))
    print(process(broker), "again: nothing is counted twice")
