"""`warmlog cluster demo`: an etcd and three brokers on this machine, one of which is killed under load."""

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from warmlog.cli.commands.cluster.access import Place, in_etcd
from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.output import line

TOPIC = "demo"
RATE = 500
"""Records a second."""
TURNS = 50
"""In a second."""
START_S, STOP_S = 30.0, 20.0
WITHOUT_ETCD = (
    "etcd is not installed: `apt-get install etcd-server` on Debian and Ubuntu, `brew install etcd` on macOS, or a "
    "release of https://github.com/etcd-io/etcd/releases in the PATH"
)


class Process(NamedTuple):
    """A process, its command line, where it writes to, and where it listens."""

    running: subprocess.Popen[bytes]
    command: list[str]
    log: Path
    address: str


@click.command()
@click.option("--seconds", type=click.IntRange(min=1), default=10, metavar="N", help="How long to write records.")
@click.option("--stay", is_flag=True, help="Let all run on until Ctrl-C, to try things.")
def demo(seconds: int, stay: bool) -> None:
    """Start a cluster of three brokers, kill one under load, and show what happens.

    Everything is in a temporary directory, and gone afterwards. It needs etcd in the PATH.
    """
    if (etcd := shutil.which("etcd")) is None:
        raise CommandFailed(WITHOUT_ETCD)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # as Ctrl-C: nothing runs on
    with tempfile.TemporaryDirectory(prefix="warmlog-cluster-") as name, ExitStack() as running:
        directory = Path(name)
        address, peers = (f"127.0.0.1:{_free_port()}" for _ in range(2))
        urls = ["--listen-client-urls", f"http://{address}", "--advertise-client-urls", f"http://{address}"]
        urls += ["--listen-peer-urls", f"http://{peers}", "--initial-advertise-peer-urls", f"http://{peers}"]
        urls += ["--initial-cluster", f"demo=http://{peers}"]
        store = [etcd, "--name", "demo", "--data-dir", str(directory / "etcd"), "--log-level", "error", *urls]
        running.enter_context(_process(store, directory / "etcd.log", address))
        place = Place(etcd=address, cluster_id="demo")
        from warmlog_broker.tools.cluster.init import create_cluster

        in_etcd(place, lambda client: create_cluster(client, place.cluster_id))
        line(f"etcd at {address}; a cluster called demo in it: warmlog cluster init --etcd {address} --cluster-id demo")
        brokers = _start_brokers(address, directory, running)
        addresses = [process.address for process in brokers.values()]
        line(f"three brokers at {', '.join(addresses)}")
        asyncio.run(_show(brokers, addresses, seconds, running))
        if stay:
            line(f"all run on until Ctrl-C; try in another terminal\n  export WARMLOG_BROKER={','.join(addresses)}")
            line(f"  export WARMLOG_CLUSTER_ETCD={address} WARMLOG_CLUSTER_ID=demo")
            line(f"  warmlog cluster brokers\n  warmlog consume {TOPIC} --from earliest --count 3")
            signal.pause()


def _start_brokers(etcd: str, directory: Path, running: ExitStack) -> dict[int, Process]:
    secret = directory / "secret"
    secret.write_text("of this demo\n")
    brokers = {}
    for node in (1, 2, 3):
        address = f"127.0.0.1:{_free_port()}"
        command = [sys.executable, "-m", "warmlog_broker", "--listen", address]
        command += ["--data-dir", str(directory / f"broker-{node}")]
        settings = {
            "cluster.etcd": etcd,
            "cluster.id": "demo",
            "cluster.secret.file": secret,
            "node.id": node,
            "log.format": "text",
        }
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        brokers[node] = running.enter_context(_process(command, directory / f"broker-{node}.log", address))
    for process in brokers.values():
        _wait_until_ready(process)
    return brokers


async def _show(brokers: dict[int, Process], addresses: list[str], seconds: int, running: ExitStack) -> None:
    from warmlog import Admin, Consumer, Producer

    async with Admin(addresses) as admin, Producer(addresses) as producer:
        await admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        leader = (await admin.describe_topic(TOPIC)).partitions[0].leader
        line(f"topic {TOPIC}, three replicas; broker {leader} leads. {RATE} records a second with acks=all …")
        gaps: list[float] = []
        count, killed, last_s = 0, False, time.monotonic()
        end_s = last_s + seconds
        while time.monotonic() < end_s:
            if not killed and time.monotonic() > end_s - seconds * 2 / 3:
                killed = True
                brokers[leader].running.kill()
                line(f"{count:,} records are acknowledged: broker {leader} is killed (SIGKILL) …")
            sent = [producer.send(TOPIC, b"%d" % number) for number in range(count, count + RATE // TURNS)]
            for delivery in sent:
                await delivery
            count += len(sent)
            gaps.append(time.monotonic() - last_s)
            last_s = time.monotonic()
            await asyncio.sleep(1 / TURNS)
        after = (await admin.describe_topic(TOPIC)).partitions[0].leader
        line(f"broker {after} leads now; no record was acknowledged for {max(gaps):.1f} s, and no call has failed")
    line(f"broker {leader} is started again, and fetches what it has missed …")
    brokers[leader] = running.enter_context(_process(*brokers[leader][1:]))
    await asyncio.to_thread(_wait_until_ready, brokers[leader])
    async with Consumer(addresses, topics=[TOPIC]) as consumer:
        found = [int(record.value or b"") async for record in consumer.records(until="latest")]
    if found != list(range(count)):
        raise CommandFailed(f"{count} records were acknowledged, and {len(found)} are there: please report it")
    line(f"all {count:,} acknowledged records are there, each once and in order")


@contextmanager
def _process(command: list[str], log: Path, address: str) -> Iterator[Process]:
    with log.open("ab") as output:
        running = subprocess.Popen(  # noqa: S603 - no shell
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield Process(running, command, log, address)
    finally:
        running.terminate()
        try:
            running.wait(STOP_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _wait_until_ready(process: Process) -> None:
    """Return when a broker accepts connections. CommandFailed with what it says if it ends."""
    host, _, port = process.address.rpartition(":")
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            if process.running.poll() is not None or time.monotonic() > deadline_s:
                raise CommandFailed(f"a broker does not start:\n{process.log.read_text()[-2000:]}") from None
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
