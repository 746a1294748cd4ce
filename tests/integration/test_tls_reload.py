"""New certificates while the broker serves: without a failed request, and without a restart."""

import asyncio
import os
import re
import signal
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from broker_process import BrokerProcess, port_to_keep
from certificates import HOSTS, Certificates
from warmlog import Admin, Producer
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.network.tls import certificate as module
from warmlog_broker.network.tls.certificate import Certificate, load_context

TIMEOUT_S = 40.0


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


class TlsBroker:
    """A broker process with one TLS listener, and options for its clients."""

    def __init__(self, process: BrokerProcess, certificates: Certificates) -> None:
        self.process = process
        self.options: dict[str, Any] = {"ssl": True, "ssl_cafile": certificates.ca}

    @property
    def address(self) -> str:
        return self.process.address

    async def serial(self) -> int:
        """The serial number of the certificate that a new connection is shown."""
        host, _, port = self.address.rpartition(":")
        context = ssl.create_default_context(cafile=self.options["ssl_cafile"])
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        shown = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        return int(shown, 16)

    async def other_serial(self, known: set[int]) -> int:
        """The serial number, once it is none of the `known`."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                shown = await self.serial()
                if shown not in known:
                    return shown
                await asyncio.sleep(0.02)


async def until_logged(process: BrokerProcess, text: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if text in process.output:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(tmp_path: Path, certificates: Certificates, **settings: Any) -> AsyncIterator[TlsBroker]:
    listeners = f"tls=ssl://127.0.0.1:{port_to_keep()}"
    process = BrokerProcess(tmp_path / "data", listeners=listeners, tls_cert_file=certificates.broker, **settings)
    await asyncio.to_thread(process.start)
    try:
        yield TlsBroker(process, certificates)
    finally:
        await asyncio.to_thread(process.kill)


def replace(certificates: Certificates, not_after: datetime | None = None) -> None:
    """Put a new certificate in the place of the broker's, as a tool for renewals does."""
    Path(certificates.issue("new", *HOSTS, not_after=not_after)).replace(certificates.broker)


def expiry_at(admin_port: int) -> datetime:
    """What the metrics say."""
    text = urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=60).read().decode()
    found = re.search("(?m)^warmlog_tls_certificate_expiry_timestamp_seconds (.*)$", text)
    assert found
    return datetime.fromtimestamp(float(found[1]), UTC)


@pytest.mark.parametrize("is_told", [True, False], ids=["SIGHUP", "changed files"])
async def test_a_new_certificate_is_taken_under_load_without_a_failed_request(
    tmp_path: Path, certificates: Certificates, is_told: bool
) -> None:
    interval = {"tls_reload_interval_ms": 0 if is_told else 50}
    async with serving(tmp_path, certificates, **interval) as broker:
        before = await broker.serial()
        async with Admin(broker.address, **broker.options) as admin:
            await admin.create_topic("t", partitions=1)
        stopping = asyncio.Event()

        async def produce() -> int:
            count = 0
            async with Producer(broker.address, linger_ms=0, retry_backoff_ms=1, **broker.options) as producer:
                while not stopping.is_set():
                    assert (await producer.send("t", b"v" * 1000)).offset >= 0
                    count += 1
            return count

        async def connect() -> int:
            count = 0
            while not stopping.is_set():
                async with Admin(broker.address, **broker.options) as admin:
                    assert await admin.topic_names() == ["t"]
                count += 1
            return count

        async with asyncio.TaskGroup() as group:
            load = [group.create_task(work()) for work in (produce, produce, connect, connect)]
            serials = {before}
            for _ in range(3):
                await asyncio.sleep(0.1)
                replace(certificates)
                if is_told:
                    os.kill(broker.process.pid, signal.SIGHUP)
                serials.add(await broker.other_serial(serials))
            stopping.set()
        assert all(task.result() > 0 for task in load)
        assert "lost" not in broker.process.output
        assert "failed" not in broker.process.output


async def test_a_bad_new_certificate_is_told_and_the_old_one_stays(tmp_path: Path, certificates: Certificates) -> None:
    async with serving(tmp_path, certificates, tls_reload_interval_ms=50) as broker:
        before = await broker.serial()
        good = Path(certificates.issue("good", *HOSTS))
        without_key = tmp_path / "without-key.pem"
        certificates.authority.cert_pem.write_to_path(str(without_key))
        without_key.replace(certificates.broker)
        await until_logged(broker.process, "was not reloaded, the old one stays in use: tls.cert.file")
        assert await broker.serial() == before
        await asyncio.to_thread(good.replace, certificates.broker)
        await until_logged(broker.process, "reloaded the TLS certificate")
        assert await broker.serial() != before
        assert broker.process.output.count("was not reloaded") == 1


def test_files_that_the_broker_may_read_only_later_are_loaded_then(tmp_path: Path, certificates: Certificates) -> None:
    certificate = Certificate(BrokerConfig(data_dir=str(tmp_path), tls_cert_file=certificates.broker))
    before = certificate.context
    certificate.reload_if_changed()
    assert certificate.context is before
    Path(certificates.broker).chmod(0o400)
    certificate.reload_if_changed()
    assert certificate.context is not before


def test_a_reload_that_has_read_older_files_does_not_undo_a_later_one(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = Certificate(BrokerConfig(data_dir=str(tmp_path), tls_cert_file=certificates.broker))
    loaded: list[ssl.SSLContext] = []
    has_read, may_end = threading.Event(), threading.Event()

    def load(config: BrokerConfig) -> ssl.SSLContext:
        context = load_context(config)
        loaded.append(context)
        if context is loaded[0]:
            has_read.set()
            assert may_end.wait(TIMEOUT_S)
        return context

    monkeypatch.setattr(module, "load_context", load)
    first, second = threading.Thread(target=certificate.reload), threading.Thread(target=certificate.reload)
    first.start()
    assert has_read.wait(TIMEOUT_S)
    replace(certificates)
    second.start()
    second.join(0.2)
    may_end.set()
    first.join(TIMEOUT_S)
    second.join(TIMEOUT_S)
    assert certificate.context is loaded[1]


async def test_a_certificate_that_expires_is_told_and_measured(tmp_path: Path, certificates: Certificates) -> None:
    admin_port = port_to_keep()
    interval = {"tls_reload_interval_ms": 50, "admin_listen": f"127.0.0.1:{admin_port}"}
    now = datetime.now(UTC).replace(microsecond=0)
    soon, later = now + timedelta(days=13), now + timedelta(days=15)
    replace(certificates, soon)
    async with serving(tmp_path, certificates, **interval) as broker:
        assert f"{certificates.broker} expires at {soon}, clients refuse it" in broker.process.output
        assert await asyncio.to_thread(expiry_at, admin_port) == soon
        replace(certificates, later)
        await until_logged(broker.process, "reloaded the TLS certificate")
        assert await asyncio.to_thread(expiry_at, admin_port) == later
        assert str(later) not in broker.process.output
        past = now - timedelta(days=1)
        replace(certificates, past)
        await until_logged(broker.process, f"expires at {past}, clients refuse it from then on")


async def test_a_broker_without_tls_goes_on_after_sighup(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data")
    await asyncio.to_thread(process.start)
    try:
        os.kill(process.pid, signal.SIGHUP)
        await until_logged(process, "there is no TLS certificate to reload")
        async with Admin(process.address) as admin:
            assert await admin.topic_names() == []
    finally:
        await asyncio.to_thread(process.kill)
