"""What a broker imports before it accepts connections: most of a start. And that it collects garbage after that."""

import subprocess
import sys
from pathlib import Path

LATER = {
    "warmlog": "the client",
    "warmlog_transport": "the connections of a client",
    "warmlog_broker.cluster": "one broker of several, with cluster.etcd",
    "warmlog_broker.etcd": "the same",
    "warmlog_broker.coordinator.framework": "groups and transactions, by the first request for them",
    "warmlog_broker.coordinator.group": "the same",
    "warmlog_broker.coordinator.transaction": "the same",
    "warmlog_broker.gate": "rights, with authorization=acl",
    "warmlog_broker.handlers.access": "each family of handlers, by its first request",
    "warmlog_broker.handlers.fetch": "the same",
    "warmlog_broker.handlers.groups": "the same",
    "warmlog_broker.handlers.produce": "the same",
    "warmlog_broker.handlers.topics": "the same",
    "warmlog_broker.handlers.transactions": "the same",
    "warmlog_broker.kafka": "Kafka's protocol, for a listener that speaks it",
    "warmlog_broker.maintenance.log_cleaner": "compaction, once the broker accepts connections",
    "warmlog_broker.metrics": "metrics, if admin.listen is set",
    "warmlog_broker.network.tls": "TLS, for a listener that has it",
    "warmlog_broker.storage.cleaner": "compaction",
    "warmlog_broker.storage.kafka": "Kafka's directories, by the command that adopts them",
    "warmlog_broker.storage.verify": "the check of stopped logs",
    "warmlog_broker.tools": "offline work",
    "warmlog_protocol.kafka": "Kafka's protocol, for a listener that speaks it",
    "warmlog_protocol.sasl.derivation": "hashes and tables of passwords, when somebody authenticates",
    "warmlog_protocol.sasl.scram": "the same",
}
"""What is imported later, and when."""
OTHERS = {
    "_blake2", "_bisect", "_ctypes", "_hashlib", "_json", "_random", "_sha512", "_weakrefset", "bisect", "copy",
    "cramjam", "ctypes", "dataclasses", "encodings", "fnmatch", "hashlib", "importlib", "ipaddress", "json", "mmap",
    "ntpath", "pathlib", "random", "resource", "urllib",
}  # fmt: skip
"""Modules of the standard library and of libraries, beside those of the floor: asyncio, ssl, msgspec and uvloop."""
PROGRAM = """
import asyncio, ssl, sys, msgspec, uvloop
floor = set(sys.modules)
from warmlog_broker.config.sources import load_settings
from warmlog_broker.server.broker import Broker
from warmlog_broker.server.process import serve
from warmlog_broker.runtime.systemd import ServiceManager

async def main():
    config = load_settings({"data.dir": sys.argv[1], "listen": "127.0.0.1:0"}, environment={})
    broker = Broker(config, ServiceManager({}))
    listen = broker._listen
    async def listened(bound):
        await listen(bound)
        print(*sorted(set(sys.modules) - floor))
    broker._listen = listened
    await broker.start()
    await broker.stop()

uvloop.run(main())
"""


def test_a_broker_accepts_connections_before_it_imports_what_only_some_requests_need(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "data")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = done.stdout.split()
    too_early = [name for name in imported if any(name == each or name.startswith(f"{each}.") for each in LATER)]
    assert too_early == []
    tops = {name.partition(".")[0] for name in imported} - {"warmlog_broker", "warmlog_protocol"}
    assert tops <= OTHERS, tops - OTHERS


COLLECTING = """
import gc, os, signal, sys, threading, time
from warmlog_broker.__main__ import main

def watch():
    while not gc.isenabled():  # before main disables it, and once the broker serves
        time.sleep(0.001)
    print("collects again")
    os.kill(os.getpid(), signal.SIGTERM)

disable = gc.disable
def disable_and_watch():
    disable()
    gc.disable = disable
    threading.Thread(target=watch, daemon=True).start()

gc.disable = disable_and_watch
sys.exit(main(["--data-dir", sys.argv[1], "--listen", "127.0.0.1:0"]))
"""


def test_a_broker_that_serves_collects_its_garbage(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COLLECTING, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "collects again\n"
    assert "ready, listening" in done.stderr
