"""Every block of code in README and docs runs, twice in a row, against a real broker; the others are checked."""

import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from broker_process import BrokerProcess
from docs.blocks import NOT_CODE, PAGES, ROOT, RUN, Block, blocks_of, page_name

RUNNER = Path(__file__).parent / "page_runner.py"
PRELOADING = ROOT / "tests" / "spark" / "preloading"
PAGE_TIMEOUT_S = 240

SPARK_DEFAULTS = """
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.driver.memory 1g
spark.sql.shuffle.partitions 2
spark.ui.enabled false
spark.ui.showConsoleProgress false
"""
"""As in the tests of Spark: what is read from a file applies to every session that a page makes."""

BLOCKS = {page: blocks_of(page) for page in PAGES}
NOT_RUN = [(page, block) for page, blocks in BLOCKS.items() for block in blocks if block.reason]
RUNNABLE = [page for page, blocks in BLOCKS.items() if any(block.is_run for block in blocks)]
WITH_SPARK = [page for page in RUNNABLE if "SparkSession" in page.read_text()]
GROUPS = [*([page] for page in RUNNABLE if page not in WITH_SPARK), WITH_SPARK]
"""Pages that run in one process. Those with Spark share its session, which takes long to start."""


@pytest.mark.parametrize("pages", GROUPS, ids=lambda pages: "+".join(map(page_name, pages)))
def test_the_blocks_of_a_page_run_twice_in_a_row(pages: list[Path], tmp_path: Path) -> None:
    directory = tmp_path / "work"
    directory.mkdir()
    (tmp_path / "spark-defaults.conf").write_text(SPARK_DEFAULTS)
    with BrokerProcess(tmp_path / "data") as broker:
        done = subprocess.run(
            [sys.executable, RUNNER, broker.address, *pages],
            cwd=directory,
            env=_environment(broker.address, tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PAGE_TIMEOUT_S,
        )
    assert done.returncode == 0, done.stdout.decode(errors="replace")


@pytest.mark.parametrize(("page", "block"), NOT_RUN, ids=[f"{page_name(page)}-{block.line}" for page, block in NOT_RUN])
def test_a_block_that_is_not_run_has_a_valid_syntax(page: Path, block: Block) -> None:
    _check_syntax(page, block)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_what_is_not_code_has_a_valid_syntax(page: Path) -> None:
    for block in BLOCKS[page]:
        assert block.language in (*RUN, *NOT_CODE), f"{page}:{block.line}: unknown language {block.language}"
        if block.language in CHECKS:
            _check_syntax(page, block)


def test_what_is_not_run_is_counted(tell: Callable[[str], None]) -> None:
    run = sum(block.is_run for blocks in BLOCKS.values() for block in blocks)
    reasons = Counter(block.reason for _, block in NOT_RUN)
    listed = "; ".join(f"{count}: {why}" for why, count in sorted(reasons.items()))
    tell(f"{run} blocks run, {len(NOT_RUN)} do not ({listed})")
    assert run > 4 * len(NOT_RUN)


def _environment(address: str, spark_conf: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WARMLOG_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    spark = {
        "PYSPARK_PYTHON": Path(sys.executable).name,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(spark_conf),
    }
    spark["PYTHONPATH"] = str(PRELOADING)
    return {**inherited, **spark, "WARMLOG_BROKER": address, "PATH": path, "NO_COLOR": "1", "COLUMNS": "120"}


def _check_syntax(page: Path, block: Block) -> None:
    try:
        CHECKS.get(block.language, str)(block.text)
    except Exception as error:
        raise AssertionError(f"{page}:{block.line}: {error}") from error


def _check_shell(text: str) -> None:
    done = subprocess.run(["bash", "-n", "-c", text], stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()


CHECKS: dict[str, Callable[[str], object]] = {
    "python": lambda text: compile(text, "block", "exec"),
    "sh": _check_shell,
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}
