"""Settings that all tests share, and figures that tests tell."""

import gc
import os
import signal
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from broker_process import BrokerProcess
from spark.quick_start import set_options
from warmlog_protocol.sasl.credential import MIN_ITERATIONS
from warmlog_protocol.sasl.derivation import make_credential

# No deadline: the time that one example takes says nothing on a machine that does other things as well. Continuous
# integration takes the same examples each time, so that it fails for what was changed.
settings.register_profile("development", deadline=None, max_examples=60)
settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "development")

BrokerProcess.may_fork = True
make_credential.__kwdefaults__ = {"salt": None, "iterations": MIN_ITERATIONS}  # in this process, a quarter of the time
set_options()
gc.disable()  # until all is collected: what the tests consist of is never garbage

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell that runs the tests in the background ignores SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)  # processes that tests start would inherit that

TESTS = Path(__file__).parent
LONGEST_FIRST = ("spark", "clients", "cluster", "console", "kafka", "faults", "docs", "integration", "unit")
"""Folders, by how long a file takes: short ones at the end let all processes end at the same time.

Folders that are not named here come first.
"""
LONG_FILES = ("test_simulation", "test_foreign_loop", "test_adopt", "test_segment_swap", "test_messages", "test_groups")
"""Files that take much longer than the others of their folder: they begin before them."""

WRITING_IN_SPARK = (
    *("test_attempts", "test_exactly_once", "test_export", "test_groups", "test_lost_data", "test_tls"),
    *("test_write", "test_write_stream"),
)
"""Files that share a session of Spark, which takes long to start and to become fast. All others share a second one: in
one process they might take longer than all other tests together take in the others."""

FIGURE = "figure"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file stay in one process, as do those that share a session of Spark."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            if not file.startswith("tests/spark/"):
                return str(file)
            return f"tests/spark, {'writing' if Path(file).stem in WRITING_IN_SPARK else 'reading'}"

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection(session: pytest.Session) -> None:
    """Let each of several processes begin with other files: they compile them for each other."""
    config = session.config
    if hasattr(config, "workerinput") and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        files = sorted(str(path) for path in TESTS.rglob("test_*.py"))
        number = int(config.workerinput["workerid"].removeprefix("gw"))
        begin = len(files) * number // config.workerinput["workercount"]
        config.args = files[begin:] + files[:begin]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first where several processes share the tests, in the same order in each."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.path))


@cache
def _turn(path: Path) -> tuple[int, bool, str]:
    """What the files are ordered by."""
    folder = path.relative_to(TESTS).parts[0]
    number = LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else -1
    return number, path.stem not in LONG_FILES, str(path)


def pytest_collection_finish() -> None:
    """Leave all that the tests consist of to no collection of garbage: each takes a fifth of a second otherwise."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Says a line of figures, which is printed when all tests are over, whether they passed or not."""
    return partial(record_property, FIGURE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests have told."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    lines = [
        f"{report.nodeid.rpartition('/')[2]}: {value}"
        for report in reports
        if isinstance(report, pytest.TestReport)
        for name, value in report.user_properties
        if name == FIGURE
    ]
    if lines:
        terminalreporter.section("figures")
        for line in sorted(lines):
            terminalreporter.write_line(line)
