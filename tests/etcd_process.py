"""A real etcd for tests, of one member or more, as processes of their own: killed, stopped, started again."""

import json
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from broker_process import port_to_keep
from warmlog_broker.etcd.connection import EtcdOptions

PROGRAM = shutil.which("etcd")
START_TIMEOUT_S = 40

needs_etcd = pytest.mark.skipif(PROGRAM is None, reason="needs etcd (Debian: apt-get install etcd-server)")


class EtcdMember:
    """One member, on a data directory and two ports that it keeps."""

    def __init__(self, name: str, directory: Path, scheme: str) -> None:
        self.name = name
        self.directory = directory
        self.address = f"127.0.0.1:{port_to_keep()}"
        self.url = f"{scheme}://{self.address}"
        self.peer_url = f"http://127.0.0.1:{port_to_keep()}"
        self.process: subprocess.Popen[bytes] | None = None

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class EtcdProcess:
    """An etcd in `directory`. A context manager: entering starts all members and waits until they agree."""

    def __init__(
        self, directory: Path, *, members: int = 1, certificate: str = "", ca: str = "", more: Sequence[str] = ()
    ) -> None:
        """With `certificate` and `ca` (PEM files) it speaks TLS to its clients."""
        scheme = "https" if certificate else "http"
        self.members = [EtcdMember(f"m{n}", directory / f"m{n}", scheme) for n in range(members)]
        self.ca = ca
        self._more = [*more]
        if certificate:
            self._more += ["--cert-file", certificate, "--key-file", certificate]

    def __enter__(self) -> Self:
        for member in self.members:
            self.start(member, wait=False)
        for member in self.members:
            self.wait(member)
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(member.address for member in self.members)

    @property
    def options(self) -> EtcdOptions:
        return EtcdOptions(endpoints=self.addresses, ca=Path(self.ca) if self.ca else None)

    def leader(self) -> EtcdMember:
        """The member that leads the others, which must have one."""
        for member in self.members:
            status = self.post("/v3/maintenance/status", {}, member)
            if status["leader"] == status["header"]["member_id"]:
                return member
        raise AssertionError("etcd has no leader")

    def member_at(self, address: str) -> EtcdMember:
        return next(member for member in self.members if member.address == address)

    def start(self, member: EtcdMember, *, wait: bool = True) -> None:
        peers = ",".join(f"{each.name}={each.peer_url}" for each in self.members)
        arguments = [PROGRAM or "etcd", "--name", member.name, "--data-dir", str(member.directory)]
        arguments += ["--listen-client-urls", member.url, "--advertise-client-urls", member.url]
        arguments += ["--listen-peer-urls", member.peer_url, "--initial-advertise-peer-urls", member.peer_url]
        arguments += ["--initial-cluster", peers, "--heartbeat-interval", "50", "--election-timeout", "500"]
        arguments += ["--log-level", "error", *self._more]
        member.directory.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{member.directory}.log", "ab") as log:
            member.process = subprocess.Popen(arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        if wait:
            self.wait(member)

    def wait(self, member: EtcdMember) -> None:
        """Returns when the member answers, which it does only as one of a majority."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.post("/v3/kv/range", {"key": "AA=="}, member)
                return
            except OSError as error:
                if isinstance(error, HTTPError) and error.code == 400:
                    return  # it wants a user: it answers
                assert time.monotonic() < deadline, Path(f"{member.directory}.log").read_text()[-2000:]
                time.sleep(0.02)

    def kill_all(self) -> None:
        for member in self.members:
            member.kill()

    def lose_all(self) -> None:
        """All members lose their data, and start again at the same addresses."""
        self.kill_all()
        for member in self.members:
            shutil.rmtree(member.directory)
        self.__enter__()

    def stop(self, member: EtcdMember) -> None:
        member.signal(signal.SIGSTOP)

    def go_on(self, member: EtcdMember) -> None:
        member.signal(signal.SIGCONT)

    def post(self, path: str, body: dict[str, Any], member: EtcdMember | None = None) -> dict[str, Any]:
        """The answer to a call of etcd's JSON interface."""
        context = ssl.create_default_context(cafile=self.ca) if self.ca else None
        url = (member or self.members[0]).url + path
        with urlopen(Request(url, json.dumps(body).encode()), timeout=60, context=context) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def compact(self, revision: int) -> None:
        self.post("/v3/kv/compaction", {"revision": revision})

    def enable_auth(self, password: str) -> None:
        """From now on only `root` may do anything."""
        self.post("/v3/auth/user/add", {"name": "root", "password": password})
        self.post("/v3/auth/role/add", {"name": "root"})
        self.post("/v3/auth/user/grant", {"user": "root", "role": "root"})
        self.post("/v3/auth/enable", {})
