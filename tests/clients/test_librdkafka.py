"""librdkafka's own tests: `LIBRDKAFKA=DIR make test-clients`, DIR being a checkout in which its tests are built."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from clients import fetched, programs
from clients.served import Served, serve

CLIENT = "librdkafka 2.15, its own tests"
SETTINGS = {"num_partitions": 4, "authorization": "acl", "allow_everyone_if_no_acl_found": True}
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
    "0097_ssl_verify": "the certificates of its own cluster",
    "0098_consumer_txn": "three brokers",
    "0101_fetch_from_follower": "three brokers",
    "0103_transactions": "three brokers",
    "0107_topic_recreate": "three brokers",
    "0111_delay_create_topics": "three brokers",
    "0126_oauthbearer_oidc": "OAUTHBEARER",
    "0135_sasl_credentials": "share groups",
    "0142_reauthentication": "share groups",
}
"""What these lack here: they skip themselves, or cannot pass."""


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
def broker(directory: Path, *, creates_topics: bool) -> Iterator[Served]:
    """A broker that refuses what rules deny, and lets clients without a name set them."""
    rule = ("acl", "add", "ANONYMOUS", "all", "--cluster", "--data-dir", directory / "data")
    directory.mkdir()
    programs.run([sys.executable, "-m", "warmlog", *rule])
    with serve(directory, SETTINGS | {"auto_create_topics_enable": creates_topics}) as served:
        yield served


def kafka_scripts(directory: Path) -> Path:
    """The two scripts of Kafka's distribution that tests call."""
    (directory / "bin").mkdir()
    for script, tool in {"kafka-topics.sh": "TopicCommand", "kafka-acls.sh": "AclCommand"}.items():
        path = directory / "bin" / script
        path.write_text(f'#!/bin/sh\nexec java -cp "{fetched.jars()}/*" org.apache.kafka.tools.{tool} "$@"\n')
        path.chmod(0o755)
    return directory


def run(served: Served, scenario: str, protocol: str, directory: Path) -> dict[str, str]:
    """What each test came to: PASSED, FAILED, SKIPPED or what its process ended with; the logs are in `directory`."""
    directory.mkdir()
    (directory / "test.conf").write_text(
        f"bootstrap.servers={served.address}\nbroker.address.family=v4\ntest.topic.random=true\n"
        "test.timeout.multiplier=3\n"
    )

    environment = {
        "BROKERS": served.address,
        "KAFKA_PATH": str(kafka_scripts(directory)),
        "LD_LIBRARY_PATH": "../src:../src-cpp",
        "RDKAFKA_TEST_CONF": str(directory / "test.conf"),
        "TEST_CONSUMER_GROUP_PROTOCOL": protocol,
        "TEST_KAFKA_VERSION": "4.0.0",
    }

    def run_one(name: str) -> str:
        log = directory / f"{name}.log"
        given = os.environ | environment | {"TESTS": name}
        quick = [] if name in SKIPPED_IF_QUICK else ["-Q"]
        command = [RUNNER, "-p1", *quick, "-s", scenario]
        try:
            with log.open("wb") as output:
                subprocess.run(command, cwd=DIRECTORY, env=given, stdout=output, stderr=output, timeout=TEST_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "TIMEOUT"
        result = re.search(rf"{name} +\| +(PASSED|FAILED|SKIPPED)", log.read_text(errors="replace"))
        return result[1] if result is not None else "CRASHED"

    names = chosen(scenario)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(names, pool.map(run_one, names), strict=True))


@pytest.mark.skipif(not RUNNER.is_file(), reason="LIBRDKAFKA is not a checkout of librdkafka with its tests built")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_its_own_tests(protocol: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    results = {}
    for scenario in ("default", "noautocreate"):
        with broker(tmp_path / f"{scenario}-broker", creates_topics=scenario == "default") as served:
            results |= run(served, scenario, protocol, tmp_path / scenario)
    passed = [name for name, result in results.items() if result == "PASSED"]
    record_property("of", (len(passed), len(results)))
    excused = NEEDS_MORE.keys() | (CLASSIC_ONLY if protocol == "consumer" else set())
    assert {name: result for name, result in results.items() if result != "PASSED" and name not in excused} == {}
