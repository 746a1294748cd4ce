"""Java with Apache Kafka's classes, for tests with the real one: `make test-kafka` fetches its jars."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

JARS = Path(os.environ.get("KAFKA_JARS") or Path(__file__).parents[1] / "build" / "kafka-jars")
NEEDS_KAFKA = [
    pytest.mark.slow,
    pytest.mark.skipif(not list(JARS.glob("kafka_2.13-*.jar")), reason=f"no jars of Kafka in {JARS}: make test-kafka"),
    pytest.mark.skipif(shutil.which("java") is None, reason="no java"),
]
"""The marks of such tests."""


def run_java(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Java with Kafka's classes. What the logging library says of itself is left out of stderr."""
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-cp", f"{JARS}/*", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("SLF4J", "Picked up"))]
    return subprocess.CompletedProcess(command, done.returncode, done.stdout, "\n".join(lines))
