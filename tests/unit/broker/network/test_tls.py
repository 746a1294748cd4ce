"""TLS: a listener that the system gives no connections, and the principals of certificates."""

import asyncio
import errno
import logging
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from certificates import Certificates
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.network.tls import acceptor
from warmlog_broker.network.tls.acceptor import TlsAcceptor
from warmlog_broker.network.tls.certificate import Certificate
from warmlog_broker.network.tls.principal import principal_of
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.tasks import Tasks

TIMEOUT_S = 25


class Exhausted(socket.socket):
    """A listening socket whose process has no descriptor left when the first connection comes."""

    has_failed = False

    def accept(self) -> tuple[socket.socket, object]:
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_connections_are_accepted_again_after_a_lack_of_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "PAUSE_S", 0.05)
    certificates = Certificates(tmp_path)
    config = BrokerConfig(listeners="a=ssl://127.0.0.1:0", tls_cert_file=certificates.broker)
    listening = Exhausted()
    listening.bind(("127.0.0.1", 0))
    listening.listen(8)
    tasks = Tasks()
    connected = asyncio.Event()

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connected.set()
            transport.close()

    accepting = TlsAcceptor(
        [listening],
        certificate=Certificate(config),
        handshake_timeout_s=TIMEOUT_S,
        make_session=Protocol,
        tasks=tasks,
        lines=RepeatedLines(logging.getLogger("warmlog_broker")),
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            tls = ssl.create_default_context(cafile=certificates.ca)
            reader, writer = await asyncio.open_connection(*listening.getsockname(), ssl=tls)
            await connected.wait()
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
        assert "no connection is accepted for 0.05 s: [Errno 24] Too many open files" in caplog.text
    finally:
        accepting.close()
        await tasks.finish(TIMEOUT_S)


# Principals of client certificates


ALICE = {
    "subject": (
        (("countryName", "SE"),),
        (("organizationName", "Example, Inc."),),
        (("organizationalUnitName", "data"), ("userId", "a1")),
        (("commonName", "people"),),
        (("commonName", "alice"),),
    )
}


@pytest.mark.parametrize(
    ("certificate", "rule", "principal"),
    [
        (ALICE, "cn", "User:alice"),
        (ALICE, "dn", "User:CN=alice,CN=people,OU=data+UID=a1,O=Example\\, Inc.,C=SE"),
        ({"subject": ((("organizationName", "o"),),)}, "cn", ""),
        ({"subject": ((("emailAddress", "a@b"),),)}, "dn", "User:emailAddress=a@b"),
        ({"subject": ()}, "dn", ""),
        ({}, "dn", ""),
    ],
)
def test_the_principal_is_the_common_name_or_the_distinguished_name(
    certificate: dict[str, Any], rule: str, principal: str
) -> None:
    assert principal_of(certificate, rule) == principal


@pytest.mark.parametrize(
    ("value", "escaped"),
    [
        ("a+b", "a\\+b"),
        (" a ", "\\ a\\ "),
        ("#a", "\\#a"),
        ("a=b", "a=b"),
        ('"<a>;\\', '\\"\\<a\\>\\;\\\\'),
        ("a\0", "a\\00"),
    ],
)
def test_a_name_cannot_be_taken_for_parts_of_another(value: str, escaped: str) -> None:
    """https://www.rfc-editor.org/rfc/rfc4514#section-2.4"""
    assert principal_of({"subject": ((("commonName", value),),)}, "dn") == f"User:CN={escaped}"
