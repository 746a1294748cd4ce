"""What can happen to a broker. Each fault leaves it running again, perhaps after a restart."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from broker_process import BrokerProcess
from faults.history.target import Target
from faults.power.powered import PoweredDisk

Fault = Callable[[Target], Awaitable[None]]

MAX_OPERATIONS_TO_CUT = 400
POWER_CUT_TIMEOUT_S = 5.0
ANSWERS_A_FAULT = 100
ANSWER_TIMEOUT_S = 10.0


async def kill(target: Target) -> None:
    """SIGKILL: what was written and not synced is in the page cache still."""
    await target.restart()


async def stop(target: Target) -> None:
    """SIGTERM in the middle of everything: a clean stop and a start."""
    await asyncio.to_thread(target.broker.restart)


async def pause(target: Target) -> None:
    """SIGSTOP: nothing moves for a while, and clocks go on."""
    await _stop_for(target, target.luck.uniform(0.2, 1.5))


async def freeze(target: Target) -> None:
    """SIGSTOP for longer than any request may take."""
    await _stop_for(target, target.luck.uniform(30, 60))


async def cut_connections(target: Target) -> None:
    """Every connection is reset, with requests and answers half sent."""
    for proxy in target.proxies:
        await proxy.cut()


async def lose_answers(target: Target) -> None:
    """One connection of a producer after the other is reset with an answer on its way: it has to ask again."""
    for _ in range(ANSWERS_A_FAULT):
        await asyncio.sleep(target.luck.uniform(0, 0.005))
        proxy = target.luck.choice((target.producers_proxy, target.kafka_proxy))
        await asyncio.wait_for(proxy.lose_answer(), ANSWER_TIMEOUT_S)


async def fill_disk(target: Target) -> None:
    """Next to no room for a while."""
    disk = _disk(target)
    await asyncio.to_thread(disk.limit, free_bytes=target.luck.randrange(20_000))
    try:
        await asyncio.sleep(target.luck.uniform(0.2, 1.0))
    finally:
        await asyncio.to_thread(disk.limit, free_bytes=None)


async def fail_syncs(target: Target) -> None:
    """A few syncs fail, and what they were to write is lost if the power goes. A restart has to find out."""
    disk = _disk(target)
    await asyncio.to_thread(disk.fail_syncs, target.luck.randint(1, 3))
    await asyncio.sleep(target.luck.uniform(0.1, 0.5))
    await asyncio.to_thread(disk.fail_syncs, 0)
    await target.restart()


async def cut_power(target: Target) -> None:
    """The power goes in the middle of some operation of the disk."""
    await cut_powers([(_disk(target), target.broker)], target.luck)


async def cut_powers(powered: Sequence[tuple[PoweredDisk, BrokerProcess]], luck: Random) -> None:
    """The power goes in the middle of some operation of the first disk, and at the same time that of the others."""
    first = powered[0][0]
    await asyncio.to_thread(first.cut_after, luck.randint(1, MAX_OPERATIONS_TO_CUT))
    deadline_s = asyncio.get_running_loop().time() + POWER_CUT_TIMEOUT_S
    while not await asyncio.to_thread(lambda: first.is_off):
        if asyncio.get_running_loop().time() > deadline_s:
            break
        await asyncio.sleep(0.01)
    for disk, _ in powered:
        await asyncio.to_thread(disk.cut)
    for _, broker in powered:
        await asyncio.to_thread(broker.kill)
    for disk, broker in powered:
        await asyncio.to_thread(disk.restore, luck.randrange(2**32))
        await asyncio.to_thread(broker.start)


async def kill_member(target: Target) -> None:
    """SIGKILL of a member of a group: another takes its place."""
    await target.luck.choice(target.members).kill_one(target.luck)


async def stop_member(target: Target) -> None:
    """SIGSTOP of a member beyond its session: it goes on as if it still owned its partitions."""
    await target.luck.choice(target.members).stop_one(target.luck)


async def kill_pair(target: Target) -> None:
    """SIGKILL of a consumer and producer that copy, in the middle of a transaction."""
    await target.luck.choice(target.pairs).kill_one(target.luck)


async def stop_pair(target: Target) -> None:
    """SIGSTOP of one beyond its session: it goes on with a transaction for partitions that another has."""
    await target.luck.choice(target.pairs).stop_one(target.luck)


async def kill_job(target: Target) -> None:
    """SIGKILL of a driver with its tasks, in the middle of a version."""
    assert target.jobs is not None
    await target.jobs.kill_one(target.luck)


async def rival_jobs(target: Target) -> None:
    """Two drivers run the same job: one was stopped meanwhile, and does not know of the other."""
    assert target.jobs is not None
    await target.jobs.rival_one(target.luck)


async def _stop_for(target: Target, seconds: float) -> None:
    os.kill(target.broker.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(target.broker.pid, signal.SIGCONT)


def _disk(target: Target) -> PoweredDisk:
    assert target.disk is not None
    return target.disk


FAULTS: dict[str, Fault] = {
    "kill": kill,
    "stop": stop,
    "pause": pause,
    "freeze": freeze,
    "connections": cut_connections,
    "answers": lose_answers,
    "full": fill_disk,
    "sync": fail_syncs,
    "power": cut_power,
    "member": kill_member,
    "zombie": stop_member,
    "pair": kill_pair,
    "stopped-pair": stop_pair,
    "job": kill_job,
    "rival-job": rival_jobs,
}
NEED_POWER_DISK = frozenset({"full", "sync", "power"})
ON_REQUEST = frozenset({"freeze"})
"""Takes long, and is drawn only when it is named."""
