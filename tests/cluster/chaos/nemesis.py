"""The faults: each begins, lasts for a while, and is over when it returns."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from broker_process import BrokerProcess
from cluster.chaos.links import Links
from cluster_processes import ClusterProcesses
from faults.history.target import Proxy

Fault = Callable[[ClusterProcesses, Links, Random], Awaitable[None]]


async def kill(cluster: ClusterProcesses, _links: Links, luck: Random) -> None:
    """SIGKILL of a broker; it comes back soon, or after the others have elected."""
    broker = _one(cluster, luck)
    await _in_thread(broker.kill)
    await asyncio.sleep(luck.choice((0.0, 1.0, 4.0)))
    await _in_thread(broker.start)


async def stop(cluster: ClusterProcesses, _links: Links, luck: Random) -> None:
    """A clean stop, and a start."""
    broker = _one(cluster, luck)
    await _in_thread(broker.terminate)
    await _in_thread(broker.start)


async def pause(cluster: ClusterProcesses, _links: Links, luck: Random) -> None:
    """SIGSTOP of a broker, for less or for more than its session lasts."""
    broker = _one(cluster, luck)
    os.kill(broker.pid, signal.SIGSTOP)
    await asyncio.sleep(luck.choice((0.3, 1.5, 5.0)))
    os.kill(broker.pid, signal.SIGCONT)


async def kill_all(cluster: ClusterProcesses, _links: Links, luck: Random) -> None:
    """All brokers at once, and all come back, one after the other."""
    brokers = list(cluster.brokers.values())
    for broker in brokers:
        assert broker.process is not None
        broker.process.kill()
    luck.shuffle(brokers)
    for broker in brokers:
        await _in_thread(broker.kill)
        await _in_thread(broker.start)


async def pause_etcd(cluster: ClusterProcesses, _links: Links, luck: Random) -> None:
    """etcd does not answer for a while."""
    member = cluster.etcd.members[0]
    cluster.etcd.stop(member)
    await asyncio.sleep(luck.choice((1.0, 6.0)))
    cluster.etcd.go_on(member)


async def kill_without_etcd(cluster: ClusterProcesses, _links: Links, luck: Random) -> None:
    """A broker dies while etcd does not answer: no leader can be elected before it does."""
    member, broker = cluster.etcd.members[0], _one(cluster, luck)
    cluster.etcd.stop(member)
    await _in_thread(broker.kill)
    await asyncio.sleep(luck.choice((0.5, 3.0)))
    cluster.etcd.go_on(member)
    await _in_thread(broker.start)


async def cut_peers(cluster: ClusterProcesses, links: Links, luck: Random) -> None:
    """The others do not reach a broker, or two, which go on reaching them and etcd."""
    await _cut([links.peers[node] for node in luck.sample(list(cluster.brokers), luck.choice((1, 2)))], luck)


async def cut_etcd(cluster: ClusterProcesses, links: Links, luck: Random) -> None:
    """A broker does not reach etcd, and goes on with the others."""
    await _cut([links.etcd[luck.choice(list(cluster.brokers))]], luck)


async def cut_off(cluster: ClusterProcesses, links: Links, luck: Random) -> None:
    """A broker does not reach etcd, and the others do not reach it."""
    node = luck.choice(list(cluster.brokers))
    await _cut([links.etcd[node], links.peers[node]], luck)


async def _cut(proxies: Sequence[Proxy], luck: Random) -> None:
    for proxy in proxies:
        await proxy.stop()
    await asyncio.sleep(luck.choice((0.3, 2.0, 6.0)))
    for proxy in proxies:
        await proxy.start()


def _one(cluster: ClusterProcesses, luck: Random) -> BrokerProcess:
    return luck.choice(list(cluster.brokers.values()))


async def _in_thread(call: Callable[[], object]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, call)


FAULTS: dict[str, Fault] = {
    "kill": kill,
    "stop": stop,
    "pause": pause,
    "kill-all": kill_all,
    "etcd": pause_etcd,
    "kill-without-etcd": kill_without_etcd,
    "cut-peers": cut_peers,
    "cut-etcd": cut_etcd,
    "cut-off": cut_off,
}
