"""Spark drivers as processes of their own, to be killed while a stream runs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 600.0
"""A session of its own has to start."""

PREAMBLE = """
import sys
from pyspark.sql import SparkSession

broker, directory = sys.argv[1:]
session = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
"""


def kill_while_streaming(script: str, address: str, directory: Path, *, after: int) -> int:
    """Run `script` behind the PREAMBLE and kill -9 the driver, its JVM and its workers after so many micro-batches.

    The stream's checkpoint is `directory / "checkpoint"`; returns the number of the last micro-batch that is committed
    in it.
    """
    commits = directory / "checkpoint" / "commits"
    wanted = len(committed(commits)) + after
    driver = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + script, address, str(directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYSPARK_PYTHON": Path(sys.executable).name},
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while len(committed(commits)) < wanted:
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    return committed(commits)[-1]


def committed(commits: Path) -> list[int]:
    """The micro-batches that have a commit file, in order; none when there is no such directory yet."""
    return sorted(int(path.name) for path in commits.glob("[0-9]*"))
