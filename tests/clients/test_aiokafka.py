"""aiokafka's own integration tests: `AIOKAFKA=DIR make test-clients`, DIR being a checkout of its sources."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from clients import fetched
from clients.served import Served

CLIENT = "aiokafka 0.14.0, its own tests"
SETTINGS = {"num_partitions": 2}
SOURCES = os.environ.get("AIOKAFKA")
CONFTEST = Path(__file__).with_name("suites") / "aiokafka_conftest.py"
REQUIREMENTS = [
    "aiokafka[lz4,snappy,zstd]==0.14.0",
    "pytest==9.0.2",
    "pytest-asyncio==1.3.0",
    "pytest-mock==3.15.1",
    "pytest-timeout",
]
TEST_TIMEOUT_S = 180
TIMEOUT_S = 1800
WANTED = 170
NOT_OURS = {"test_exclude_internal_topics": "it looks for the topic __consumer_offsets, which is Kafka's own"}
"""Tests that cannot pass, and why."""


@pytest.mark.skipif(not SOURCES, reason="AIOKAFKA is not a checkout of aiokafka")
def test_its_own_tests(served: Served, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    assert SOURCES is not None
    shutil.copytree(Path(SOURCES) / "tests", tmp_path / "tests")
    shutil.copy(CONFTEST, tmp_path / "tests" / "conftest.py")
    report = tmp_path / "report.xml"
    chosen = ["tests", "--ignore=tests/test_sasl.py", "--ignore=tests/record", "-k", "Integration and not ssl"]
    options = ["-p", "no:asyncio", f"--timeout={TEST_TIMEOUT_S}", f"--junitxml={report}", "-q"]
    python = fetched.python("aiokafka", *REQUIREMENTS)
    done = subprocess.run(
        [python, "-m", "pytest", *chosen, *options],
        cwd=tmp_path,
        env={**os.environ, "BOOTSTRAP": served.address},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert report.is_file(), done.stdout[-2000:] + done.stderr
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {
        case.get("name", "") for case in cases if any(case.find(kind) is not None for kind in ("failure", "error"))
    }
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - skipped - len(failed)
    record_property("of", (passed, len(cases)))
    assert failed - NOT_OURS.keys() == set(), done.stdout[-6000:]
    assert passed >= WANTED
