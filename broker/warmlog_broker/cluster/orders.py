"""What operators want of partitions, and what the cluster wants of itself: carried out by the leaders.

An order is a key in etcd (`keys`): a leader takes the steps as far as it can, again and again, and deletes the order
when it is done. In the same way a leader follows the topic's `min.insync.replicas`, gives its leadership back to the
first replica, hands it over while its disk is full, and orders the replicas that an internal topic lacks.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable

from warmlog_broker.cluster.data_path.driver import Driver
from warmlog_broker.cluster.data_path.replicas import Replicas
from warmlog_broker.cluster.keys import OrderValue, to_bytes
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.store import wanted_min_isr
from warmlog_broker.cluster.view import View
from warmlog_broker.etcd.coordination import ChangedAt, Coordination, CoordinationError, Delete, Put
from warmlog_broker.metadata.store import DEFAULT_REPLICAS
from warmlog_broker.replication import events as ev
from warmlog_broker.replication.placement import grown
from warmlog_broker.replication.reassignment import preferred_leader
from warmlog_broker.replication.record import PartitionRecord

BALANCE_S = 1.0
"""How often a broker looks for partitions that it leads in the place of another."""
SETTLED_S = 30.0
"""A replica that is in sync for so long gets its leadership back; a disk that is full for so long costs it."""

_log = logging.getLogger(__name__)


def is_done(order: OrderValue, record: PartitionRecord) -> bool:
    """Return whether a partition, which has a leader, is as an operator has wanted it."""
    if order.recover is not None:
        return True
    if order.replicas is not None:
        return record.replicas == order.replicas and not record.adding and not record.removing
    return record.leader == order.leader


class Orders:
    """The orders for the replicas of one broker."""

    def __init__(self, etcd: Coordination, view: View, replicas: Replicas) -> None:
        self._etcd = etcd
        self._view = view
        self._replicas = replicas
        self._wanting_since_s: dict[PartitionKey, float] = {}
        """Since when another replica should lead a partition that this broker leads."""

    async def run(self) -> None:
        """Carry out what can be, for as long as the broker runs."""
        while True:
            await asyncio.sleep(BALANCE_S)
            if self._view.frozen:
                continue
            try:
                await self._repeat()
                led = [driver for driver in self._replicas if driver.replica.leading is not None]
                self._take_settings(led)
                self._drain(led)
                await self._grow_internal(led)
                await self._hand_over(led)
            except Exception:
                _log.exception("orders of partitions cannot be carried out: a bug")

    def changed(self, driver: Driver) -> None:
        """Do what is wanted of a partition now, or is not wanted any more."""
        order = self._view.orders.get(driver.key)
        driver.do(ev.TargetSet(None if order is None else order.replicas))
        if order is not None and order.leader in self._able(driver):
            driver.do(ev.HandOverAsked(order.leader))
        if order is not None and order.recover == self._view.node:
            driver.do(ev.RecoveryAsked(order.nonce))

    async def end(self, key: PartitionKey) -> None:
        """Delete an order that is carried out, but for a move beside a recovery, if this broker leads the partition."""
        order, seen = self._view.orders.get(key), self._view.records.get(key)
        if order is None or seen is None or self._view.frozen:
            return
        leads = seen.record.leader == self._view.node and self._view.node in self._view.brokers
        if leads and is_done(order, seen.record):
            name, moves = self._view.keys.order(*key), order.recover is not None and order.replicas is not None
            rest = Put(name, to_bytes(OrderValue(replicas=order.replicas))) if moves else Delete(name)
            await self._change(name, rest)

    async def _repeat(self) -> None:
        """Do what could not be done before, as a replica was not in sync, or not ready to lead."""
        for key in list(self._view.orders):
            if (driver := self._replicas.find(key)) is not None:
                self.changed(driver)
                await self.end(key)

    def _take_settings(self, led: Iterable[Driver]) -> None:
        for driver in led:
            record = driver.replica.record
            wanted = wanted_min_isr(driver.partition.config, len(record.replicas))
            if wanted != driver.replica.wanted_min_isr and not record.adding and not record.removing:
                driver.do(ev.MinIsrSet(wanted))

    def _drain(self, led: Iterable[Driver]) -> None:
        if self._view.node in self._view.drained:
            for driver in led:
                if self._able(driver):
                    driver.do(ev.HandOverAsked())

    async def _grow_internal(self, led: Iterable[Driver]) -> None:
        """Order the replicas that internal topics lack, since they were created when there were fewer brokers."""
        racks, load = self._view.racks(), Counter[int]()
        internal = {topic.topic_id for topic in self._view.state.topics.values() if topic.is_internal}
        for driver in led:
            record, key = driver.replica.record, driver.key
            if driver.replica.leading is None or key.topic_id not in internal or key in self._view.orders:
                continue
            if len(record.replicas) >= DEFAULT_REPLICAS or record.adding or record.removing:
                continue
            if not load:
                for seen in self._view.records.values():
                    load.update(seen.record.replicas)
            replicas = grown(record, racks, DEFAULT_REPLICAS, load)
            if replicas != record.replicas:
                load.update(set(replicas) - set(record.replicas))
                name, value = self._view.keys.order(*key), OrderValue(replicas=replicas)
                await self._change(name, Put(name, to_bytes(value)))

    async def _change(self, name: str, operation: Put | Delete) -> None:
        """Change an order as this broker has seen it. If the outcome is not known, it is looked at again."""
        try:
            await self._etcd.txn([ChangedAt(name, self._view.changed_at(name))], [operation])
        except CoordinationError as error:
            _log.warning("an order cannot be changed in etcd: %s", error)

    def _able(self, driver: Driver) -> list[int]:
        """Return the other brokers that may lead in the place of this one: producers would wait in vain without one."""
        sessions = self._replicas.sessions
        if driver.replica.leading is None:
            return []
        members = driver.replica.record.isr
        return [node for node in members if node in sessions and sessions[node].is_ready and node != self._view.node]

    def _better_leader(self, driver: Driver) -> int | None:
        """Return who should lead in the place of this broker: one with room if its disk has none, or the first."""
        disk, sessions = driver.partition.disk, self._replicas.sessions
        if disk is not None and disk.room.is_short:
            return next((node for node in self._able(driver) if sessions[node].has_room), None)
        return preferred_leader(driver.replica.record, sessions)

    async def _hand_over(self, led: Iterable[Driver]) -> None:
        """Let others lead that should, one partition at a time, once that has been so for a while."""
        wanting = {
            driver.key: (driver, better)
            for driver in led
            if driver.replica.leading is not None
            and driver.key not in self._view.orders
            and (better := self._better_leader(driver)) is not None
        }
        now_s = asyncio.get_running_loop().time()
        self._wanting_since_s = {key: self._wanting_since_s.get(key, now_s) for key in wanting}
        for key, (driver, better) in wanting.items():
            if now_s - self._wanting_since_s[key] >= SETTLED_S:
                driver.do(ev.HandOverAsked(better))
                await asyncio.sleep(BALANCE_S / 10)
