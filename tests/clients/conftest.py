"""Clients of Kafka that are not from PyPI, and suites of their own: `make test-clients`, one module a row of its table.

A module names its client in CLIENT and the settings of its broker, if it needs some, in SETTINGS. A test whose program
counts by itself records `of`: how many of how many have passed. What cannot be fetched fails the tests of its module,
and so does a client that hangs: all tests of a module together have ROW_TIMEOUT_S.
"""

import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.served import Served, serve

collect_ignore_glob = [] if "WARMLOG_TEST_CLIENTS" in os.environ else ["test_*.py"]
ROW_TIMEOUT_S = 1800.0
_REPORTS = pytest.StashKey[dict[str, list[pytest.TestReport]]]()
_ENDS_S = pytest.StashKey[dict[Path, float]]()


class RowTimeout(Exception):
    """The tests of a module have had their time."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_REPORTS] = defaultdict(list)
    config.stash[_ENDS_S] = {}


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Raise RowTimeout in the setup or the call of a test once the time of its module is over."""
    if not hasattr(getattr(item, "module", None), "CLIENT"):
        return (yield)

    limit_s = getattr(item.module, "ROW_TIMEOUT_S", ROW_TIMEOUT_S)  # type: ignore[attr-defined]

    def end(*_: object) -> None:
        raise RowTimeout(f"after {limit_s:.0f} s")

    ends_s = item.config.stash[_ENDS_S].setdefault(item.path, time.monotonic() + limit_s)
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, ends_s - time.monotonic()))
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


pytest_runtest_call = pytest_runtest_setup


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    client = getattr(getattr(item, "module", None), "CLIENT", None)
    if client is not None and (report.when == "call" or (report.when == "setup" and not report.passed)):
        item.config.stash[_REPORTS][client].append(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table: client, passed of all, what has passed, what has not, seconds."""
    if not config.stash[_REPORTS]:
        return
    terminalreporter.write_line("| client | passed | what | failed | s |")
    terminalreporter.write_line("|---|---|---|---|---|")
    for client, reports in config.stash[_REPORTS].items():
        counts = [dict(report.user_properties).get("of", (int(report.passed), 1)) for report in reports]
        passed, total = (sum(column) for column in zip(*counts, strict=True))
        words: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
        for report in reports:
            words[report.outcome].append(_words(report.nodeid))
        what, failed = (", ".join(dict.fromkeys(words[outcome])) for outcome in ("passed", "failed"))
        took_s = sum(report.duration for report in reports)
        terminalreporter.write_line(f"| {client} | {passed} of {total} | {what} | {failed} | {took_s:.0f} |")


def _words(node_id: str) -> str:
    return node_id.rpartition("::")[2].partition("[")[0].removeprefix("test_").replace("_", " ")


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker of the module's own."""
    with serve(tmp_path_factory.mktemp("broker"), getattr(request.module, "SETTINGS", {})) as running:
        yield running
