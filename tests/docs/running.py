"""Pages run as a reader would type them: see `page_runner`."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from broker_process import BrokerProcess
from docs.blocks import PAGES, ROOT, blocks_of
from forked import server
from spark.quick_start import forked_python

RUNNER = Path(__file__).parent / "page_runner.py"
FORK_CLIENT = ROOT / "tests" / "fork_client.py"
PAGE_TIMEOUT_S = 900
END_TIMEOUT_S = 20.0

SPARK_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""As in the tests of Spark, for every session that a page makes."""

RUNNABLE = [page for page in PAGES if any(block.is_run for block in blocks_of(page))]
WITH_SPARK = [page for page in RUNNABLE if "SparkSession" in page.read_text()]


def run_pages(pages: Sequence[Path], tmp_path: Path) -> None:
    """Run the blocks of `pages` twice in a row, against a broker of their own."""
    directory = tmp_path / "work"
    directory.mkdir()
    command = tmp_path / "bin" / "warmlog"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {shlex.quote(str(FORK_CLIENT))} "$@"\n')
    command.chmod(0o755)
    with BrokerProcess(tmp_path / "data") as broker:
        running = subprocess.Popen(
            [sys.executable, RUNNER, broker.address, *pages],
            cwd=directory,
            env=_environment(broker.address, tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = running.communicate(timeout=PAGE_TIMEOUT_S)
        finally:
            _end_group(running)
    assert running.returncode == 0, output.decode(errors="replace")


def _end_group(leader: "subprocess.Popen[bytes]") -> None:
    """End what a page that has failed may have left running."""
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + END_TIMEOUT_S
        while time.monotonic() < deadline_s:
            leader.poll()
            os.killpg(leader.pid, 0)
            time.sleep(0.02)
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()


def _environment(address: str, scratch: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WARMLOG_")}
    path = os.pathsep.join([str(scratch / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = [f"--conf {name}={value}" for name, value in SPARK_SETTINGS.items()]
    spark = {
        "PYSPARK_PYTHON": Path(sys.executable).name,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": " ".join([*settings, "pyspark-shell"]),
        **forked_python(),
    }
    own = {
        "WARMLOG_BROKER": address,
        "XDG_CONFIG_HOME": str(scratch),
        "NO_COLOR": "1",
        "COLUMNS": "120",
        "FORK_SERVER": server("warmlog").path,
    }
    return {**inherited, **spark, **own, "PATH": path}
