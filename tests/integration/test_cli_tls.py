"""The command line over TLS: by options, the environment and a profile; and a broker for users' tests with TLS."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from certificates import Certificates
from integration.command_line import CommandLine, Done
from warmlog import blocking
from warmlog.testing import EmbeddedBroker, embedded


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[EmbeddedBroker]:
    settings = {"tls_cert_file": certificates.broker, "tls_ca_file": certificates.ca, "tls_client_auth": "required"}
    with embedded(**settings) as broker:
        yield broker


def succeeded(done: Done) -> bytes:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_blocking_client_of_an_embedded_broker_has_tls(broker: EmbeddedBroker, certificates: Certificates) -> None:
    with blocking.Admin(broker.address, ssl=True, ssl_cafile=certificates.ca, ssl_certfile=certificates.alice) as admin:
        admin.create_topic("blocking")
        assert "blocking" in admin.topic_names()


def test_options_before_a_command_choose_tls(broker: EmbeddedBroker, certificates: Certificates) -> None:
    warmlog = CommandLine(broker.address)
    options = ("--ssl", "--ssl-cafile", certificates.ca, "--ssl-certfile", certificates.alice)
    succeeded(warmlog(*options, "topic", "create", "options"))
    succeeded(warmlog(*options, "produce", "options", given=b"a\nb\n"))
    assert succeeded(warmlog(*options, "consume", "options", "--to", "latest", "--format", "raw")).split() == [
        b"a",
        b"b",
    ]


def test_the_environment_chooses_tls(broker: EmbeddedBroker, certificates: Certificates) -> None:
    variables = {"WARMLOG_SSL": "true", "WARMLOG_SSL_CAFILE": certificates.ca}
    warmlog = CommandLine(broker.address, **variables, WARMLOG_SSL_CERTFILE=certificates.alice)
    succeeded(warmlog("topic", "create", "environment"))
    shown = json.loads(succeeded(warmlog("profile", "--json")))["settings"]
    assert shown["ssl"] == {"value": True, "origin": "WARMLOG_SSL"}
    assert shown["ssl_cafile"] == {"value": certificates.ca, "origin": "WARMLOG_SSL_CAFILE"}


def test_a_profile_chooses_tls_in_secret(broker: EmbeddedBroker, certificates: Certificates, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f'ssl_cafile = "{certificates.ca}"\nssl_keypassword = "4711"\n[secure]\nssl = true\n'
        f'ssl_certfile = "{certificates.alice}"\n[missing]\nssl = true\nssl_certfile = "/missing.pem"\n'
    )
    warmlog = CommandLine(broker.address, WARMLOG_CONFIG=str(file), WARMLOG_PROFILE="secure")
    succeeded(warmlog("topic", "create", "profile"))
    shown = succeeded(warmlog("profile"))
    assert b"ssl_keypassword\t(hidden)" in shown
    assert b"4711" not in shown
    refused = CommandLine(broker.address, WARMLOG_CONFIG=str(file), WARMLOG_PROFILE="missing")("topic", "list")
    assert refused.returncode == 1
    assert b"--ssl-certfile='/missing.pem' cannot be read" in refused.stderr


@pytest.mark.parametrize(
    ("variables", "arguments", "reason", "exit_code"),
    [
        ({}, (), b"does it expect TLS (--ssl) at this port?", 1),
        ({}, ("--ssl",), b"unknown issuer: give the issuer's certificate with --ssl-cafile", 1),
        ({"WARMLOG_SSL": "perhaps"}, (), b"WARMLOG_SSL=perhaps: true or false expected", 2),
        ({"WARMLOG_SSL_CAFILE": "ca.pem"}, (), b"--ssl-cafile is given without TLS: add --ssl", 1),
    ],
)
def test_a_command_says_what_is_wrong(
    broker: EmbeddedBroker, variables: dict[str, str], arguments: tuple[str, ...], reason: bytes, exit_code: int
) -> None:
    done = CommandLine(broker.address, **variables)(*arguments, "topic", "list")
    assert reason in done.stderr
    assert done.returncode == exit_code
