"""The restless process: connections that come and go, topics that are made, filled, read and deleted."""

import asyncio
import sys

from faults.soak.worker import Report, serve, until_ordered
from warmlog import Admin, Consumer, Producer
from warmlog.errors import WarmlogError

CONNECTION_EVERY_S = 0.1
TOPIC_EVERY_S = 2.0
RECORDS = 200


class Churn:
    """Counts of what came and went."""

    def __init__(self, address: str) -> None:
        self.connections = self.topics = 0
        self.errors: list[str] = []
        self._address = address

    async def run(self, orders: "asyncio.Queue[Report]") -> None:
        """Goes on until an order comes."""
        await until_ordered(orders, self._connect(), self._pass())

    async def report(self) -> Report:
        return {"connections": self.connections, "topics": self.topics, "errors": self.errors}

    async def _connect(self) -> None:
        while True:
            try:
                async with Admin(self._address) as admin:
                    await admin.list_offsets("state", "latest")
                self.connections += 1
            except WarmlogError as error:
                self.errors.append(f"connection: {type(error).__name__}: {error}")
            await asyncio.sleep(CONNECTION_EVERY_S)

    async def _pass(self) -> None:
        while True:
            try:
                await self._pass_one(f"passing-{self.topics}")
                self.topics += 1
            except WarmlogError as error:
                self.errors.append(f"topic: {type(error).__name__}: {error}")
            await asyncio.sleep(TOPIC_EVERY_S)

    async def _pass_one(self, name: str) -> None:
        async with Admin(self._address) as admin:
            await admin.create_topic(name, partitions=2)
            async with Producer(self._address) as producer:
                await producer.send_many(name, [b"%d" % number for number in range(RECORDS)])
            async with Consumer(self._address, topics=[name]) as consumer:
                read = [record.value async for record in consumer.records(until="latest")]
            if len(read) != RECORDS:
                self.errors.append(f"{name}: {len(read)} of {RECORDS} records")
            await admin.delete_topic(name)


async def main(address: str) -> None:
    churn = Churn(address)
    await serve(churn.run, churn.report)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
