"""librdkafka's own tests: `LIBRDKAFKA=DIR make test-clients`, DIR being a checkout in which its tests are built."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, pkcs12

from broker_process import BrokerProcess, port_to_keep
from certificates import Certificates
from clients import fetched, programs
from clients.served import serve
from cluster_processes import ClusterProcesses
from faults.history.target import Proxy
from warmlog.blocking import Admin
from warmlog_transport.loop_thread import LoopThread

CLIENT = "librdkafka 2.15, its own tests"
SETTINGS = {"num_partitions": 4}
DIRECTORY = Path(os.environ.get("LIBRDKAFKA", "")) / "tests"
RUNNER = DIRECTORY / "test-runner"
AT_ONCE = 3
"""Most of them wait most of the time."""
TEST_TIMEOUT_S = 300
TABLE = "struct test tests[]"
_TEST = re.compile(r"_TEST\((\w+),\s*([\w| ]+)")
_SCENARIO = re.compile(r'\.scenario = "([\w,]+)"')
CLASSIC_ONLY = {"0084_destroy_flags", "0132_strategy_ordering"}
SKIPPED_IF_QUICK = {"0082_fetch_max_bytes"}
NEEDS_MORE = {
    "0081_admin": "settings of a group",
    "0092_mixed_msgver": "magic 1, which Kafka 4 does not take either",
    "0126_oauthbearer_oidc": "OAUTHBEARER",
}
"""What these lack here: they skip themselves, or cannot pass."""
WITHOUT_SHARE_GROUPS = {"0142_reauthentication": ("test producer", "test consumer", "test reauth")}
"""Subtests that run, by what they begin with: the others are of share groups, or of OAUTHBEARER.

Those of 0135 are left out as the ones that take long, as are all that do in most of the others.
"""
SESSION_MS = 10_000


class Place(NamedTuple):
    """What tests run against, and as what they are told of it."""

    addresses: str
    settings: Mapping[str, object] = {}
    environment: Mapping[str, str] = {}


def chosen(scenario: str) -> list[str]:
    """The names of the tests that need a broker of this setting; those of share groups are left out."""
    table = (DIRECTORY / "test.c").read_text().partition(TABLE)[2].partition("{NULL}};")[0]
    found = []
    for entry in re.split(r"(?=^ +_TEST\()", table, flags=re.MULTILINE):
        match, wanted = _TEST.search(entry), _SCENARIO.search(entry)
        if match is None or re.search(r"LOCAL|MANUAL|KNOWN_ISSUE\b", match[2]) or "share_" in match[1]:
            continue
        if scenario in (wanted[1].split(",") if wanted is not None else ["default"]):
            found.append(match[1])
    return found


@contextmanager
def one_broker(directory: Path, **settings: object) -> Iterator[Place]:
    """One that refuses what rules deny, and lets clients without a name set them."""
    rule = ("acl", "add", "ANONYMOUS", "all", "--cluster", "--data-dir", directory / "data")
    programs.run([sys.executable, "-m", "warmlog", *rule])
    rules = {"authorization": "acl", "allow_everyone_if_no_acl_found": True}
    with serve(directory, {**SETTINGS, **rules, **settings}) as served:
        yield Place(served.address)


@contextmanager
def three_brokers(directory: Path, protocol: str = "plaintext", **settings: object) -> Iterator[Place]:
    cluster = ClusterProcesses(directory / "cluster", broker_session_timeout_ms=SESSION_MS, **SETTINGS, **settings)
    addresses = {node: f"127.0.0.1:{port_to_keep()}" for node in cluster.brokers}
    for node, address in addresses.items():
        listeners = f"own=plaintext://127.0.0.1:0,kafka=kafka+{protocol}://{address}"
        cluster.brokers[node] = cluster.broker(node, cluster.directory, listeners=listeners, rack=f"RACK{node}")
    with cluster:
        with Admin(cluster.brokers[1].address) as admin:
            admin.create_user("tester", "geheim")
        yield Place(",".join(addresses.values()))


@contextmanager
def passwords(directory: Path, **settings: object) -> Iterator[Place]:
    with three_brokers(directory, "sasl_plaintext", sasl_session_lifetime_ms=SESSION_MS, **settings) as place:
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "SCRAM-SHA-256"}
        yield Place(place.addresses, login | {"sasl.username": "tester", "sasl.password": "geheim"})


@contextmanager
def at_a_distance(address: str) -> Iterator[str]:
    """Another address of the same server, to which everything takes as long as over a network.

    librdkafka has two errors for a certificate that it refuses: `_TRANSPORT` if the first call of `SSL_connect` fails
    already, as it may over loopback, where the certificate is there at once, and `_SSL`, which 0097 expects.
    """
    host, _, port = address.rpartition(":")

    async def begin() -> Proxy:
        proxy = Proxy(host, int(port))
        proxy.delay_s = 0.02
        await proxy.start()
        return proxy

    with LoopThread("distance") as thread:
        proxy = thread.call(begin)
        try:
            yield proxy.address
        finally:
            thread.call(proxy.stop)


@contextmanager
def certificates(directory: Path, **settings: object) -> Iterator[Place]:
    """A broker with TLS, and a client's certificate in each form that the tests load."""
    made = Certificates(directory / "certificates")
    pem = Path(made.alice).read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    certificate, *_ = x509.load_pem_x509_certificates(pem)
    authority = x509.load_pem_x509_certificate(Path(made.ca).read_bytes())
    password = serialization.BestAvailableEncryption(b"geheim")
    contents = {
        "SSL_pub_pem": certificate.public_bytes(Encoding.PEM),
        "SSL_pub_der": certificate.public_bytes(Encoding.DER),
        "SSL_priv_pem": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, password),
        "SSL_priv_der": key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, password),
        "SSL_ca_der": authority.public_bytes(Encoding.DER),
        "SSL_all_cas_pem": authority.public_bytes(Encoding.PEM),
        "SSL_pkcs": pkcs12.serialize_key_and_certificates(b"alice", key, certificate, [authority], password),
    }
    paths = {name: directory / name for name in contents}
    for name, data in contents.items():
        paths[name].write_bytes(data)
    address = f"127.0.0.1:{port_to_keep()}"
    login = {
        "security.protocol": "SSL",
        "ssl.ca.location": made.ca,
        "ssl.certificate.location": paths["SSL_pub_pem"],
        "ssl.key.location": paths["SSL_priv_pem"],
        "ssl.key.password": "geheim",
    }
    listeners = f"own=plaintext://127.0.0.1:0,kafka=kafka+ssl://{address}"
    with ExitStack() as held:
        place = held.enter_context(at_a_distance(address))
        files = {"tls_cert_file": made.broker, "tls_key_file": made.broker, "advertised_listeners": f"kafka={place}"}
        held.enter_context(BrokerProcess(directory / "data", listeners=listeners, **files, **SETTINGS, **settings))
        # Which alert refuses a foreign certificate is Java's here, not that of RFC 8446: this broker asks for none.
        told = {name: str(path) for name, path in paths.items()}
        yield Place(place, login, told | {"SSL_password": "geheim", "SSL_client_auth": "none"})


ELSEWHERE = {
    "0097_ssl_verify": certificates,
    "0098_consumer_txn": three_brokers,
    "0101_fetch_from_follower": three_brokers,
    "0103_transactions": three_brokers,
    "0107_topic_recreate": three_brokers,
    "0111_delay_create_topics": three_brokers,
    "0135_sasl_credentials": passwords,
    "0142_reauthentication": passwords,
}
"""Tests that need something else than one broker without passwords."""


def kafka_scripts(directory: Path) -> Path:
    """What tests call of Kafka's distribution: three scripts, and jars to compile with."""
    (directory / "bin").mkdir()
    (directory / "libs").symlink_to(fetched.jars().absolute())
    tools = "org.apache.kafka.tools."
    scripts = {"topics": f"{tools}TopicCommand", "acls": f"{tools}AclCommand", "run-class": ""}
    for script, tool in scripts.items():
        path = directory / "bin" / f"kafka-{script}.sh"
        path.write_text(f'#!/bin/sh\nexec java -cp "{fetched.jars()}/*:$CLASSPATH" {tool} "$@"\n')
        path.chmod(0o755)
    return directory


def run(place: Place, names: Sequence[str], scenario: str, protocol: str, directory: Path) -> dict[str, str]:
    """What each test came to: PASSED, FAILED, SKIPPED or what its process ended with; the logs are in `directory`."""
    settings = {"bootstrap.servers": place.addresses, "broker.address.family": "v4", **place.settings}
    settings |= {"test.topic.random": "true", "test.timeout.multiplier": 3}
    (directory / "test.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    environment = {
        "BROKERS": place.addresses,
        "KAFKA_PATH": str(kafka_scripts(directory)),
        "LD_LIBRARY_PATH": "../src:../src-cpp",
        "RDKAFKA_TEST_CONF": str(directory / "test.conf"),
        "TEST_CONSUMER_GROUP_PROTOCOL": protocol,
        "TEST_KAFKA_VERSION": "4.0.0",
        **place.environment,
    }

    def run_one(name: str) -> str:
        parts = WITHOUT_SHARE_GROUPS.get(name, [""])
        results = [run_part(name, part) for part in parts]
        return next((result for result in results if result != "PASSED"), "PASSED")

    def run_part(name: str, part: str) -> str:
        log = directory / f"{name}{part.replace(' ', '-')}.log"
        given = os.environ | environment | {"TESTS": name} | ({"SUBTESTS": part} if part else {})
        quick = [] if part or name in SKIPPED_IF_QUICK else ["-Q"]
        command = [RUNNER, "-p1", *quick, "-s", scenario]
        try:
            with log.open("wb") as output:
                subprocess.run(command, cwd=DIRECTORY, env=given, stdout=output, stderr=output, timeout=TEST_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "TIMEOUT"
        result = re.search(rf"{name} +\| +(PASSED|FAILED|SKIPPED)", log.read_text(errors="replace"))
        return result[1] if result is not None else "CRASHED"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(names, pool.map(run_one, names), strict=True))


@pytest.mark.skipif(not RUNNER.is_file(), reason="LIBRDKAFKA is not a checkout of librdkafka with its tests built")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_its_own_tests(protocol: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    results = {}
    for scenario in ("default", "noautocreate"):
        for place in (one_broker, three_brokers, passwords, certificates):
            if names := [name for name in chosen(scenario) if ELSEWHERE.get(name, one_broker) is place]:
                directory = tmp_path / f"{scenario}-{place.__name__}"
                directory.mkdir()
                with place(directory, auto_create_topics_enable=scenario == "default") as entered:
                    results |= run(entered, names, scenario, protocol, directory)
    passed = [name for name, result in results.items() if result == "PASSED"]
    record_property("of", (len(passed), len(results)))
    excused = NEEDS_MORE.keys() | (CLASSIC_ONLY if protocol == "consumer" else set())
    assert {name: result for name, result in results.items() if result != "PASSED" and name not in excused} == {}
