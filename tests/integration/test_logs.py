"""The log of a broker process: its format, its levels, and the request that a line is about."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warmlog
import warmlog.blocking
from broker_process import BrokerFailed, BrokerProcess
from integration.command_line import CommandLine, succeeded
from warmlog_protocol.errors import AuthorizationFailed, TopicAuthorizationFailed
from wire_client import WireClient

PASSWORD = "geheim-0815"
SECURED = {
    "listeners": "main=sasl_plaintext://127.0.0.1:0",
    "authorization": "acl",
    "super_users": "User:root",
}
TEXT_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ .+")


def lines_of(output: str) -> list[dict[str, Any]]:
    """Every line, each of which must be one JSON object."""
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with the users alice, who has no rights, and root."""
    for name in ("alice", "root"):
        arguments = ("user", "add", name, "--data-dir", tmp_path / "data")
        succeeded(CommandLine("127.0.0.1:1")(*arguments, given=f"{PASSWORD}\n".encode()))
    with BrokerProcess(tmp_path / "data", log_format="auto", log_level="debug", **SECURED) as broker:
        yield broker


def test_lines_are_json_with_the_request_that_was_refused_and_have_no_secret(secured: BrokerProcess) -> None:
    with warmlog.blocking.Admin(secured.address, username="root", password=PASSWORD) as root:
        root.create_topic("flights", partitions=1)
    secret = "a record's value"
    with (
        pytest.raises(TopicAuthorizationFailed),
        warmlog.blocking.Producer(secured.address, username="alice", password=PASSWORD) as producer,
    ):
        producer.send("flights", secret.encode()).result()
    with (
        pytest.raises(warmlog.WarmlogError),
        warmlog.blocking.Admin(secured.address, username="alice", password="falsch-4711"),
    ):
        pass
    assert secured.terminate() == 0
    lines = lines_of(secured.output)
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
        assert line["level"] in ("debug", "info", "warning", "error", "critical")
        assert line["logger"].startswith(("warmlog_broker.", "asyncio"))
        assert line["message"]
    (refused, *_) = [line for line in lines if "was refused" in line["message"]]
    assert refused["level"] == "warning"
    assert (refused["principal"], refused["listener"]) == ("User:alice", "main")
    assert refused["api"] in refused["message"]
    assert refused["client"] in refused["message"]
    ended = [line for line in lines if line.get("request") == refused["request"] and "ended after" in line["message"]]
    assert [line["api"] for line in ended] == [refused["api"]]
    (failed,) = [line for line in lines if "authentication of" in line["message"]]
    assert (failed["api"], failed["principal"]) == ("Authenticate", "User:ANONYMOUS")
    assert "request" not in lines[0]
    for each in (PASSWORD, "falsch-4711", secret):
        assert each not in secured.output


def test_on_a_terminal_lines_are_text(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "warmlog_broker", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    command += ["--set", "log.level=debug"]
    shown = b""
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        try:
            while (ready := re.search(rb"listening on (\S+) ", shown)) is None:
                shown += os.read(controller, 65536)
            with WireClient(ready[1].decode()) as client:
                client.create_topic("t")
            process.terminate()
            while b"stopped" not in shown:
                shown += os.read(controller, 65536)
            assert process.wait(30) == 0
        finally:
            process.kill()
            os.close(controller)
    lines = shown.decode().splitlines()
    assert all(TEXT_LINE.fullmatch(line) for line in lines), lines
    (created,) = [line for line in lines if "'t' created" in line]
    assert re.search(r" \[request 1-\d+, CreateTopics of User:ANONYMOUS from 127\.0\.0\.1:\d+\]$", created)


def test_levels_change_while_it_runs_and_a_restart_keeps_them(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, log_format="json", log_level="error,server=info") as broker:
        commands = CommandLine(broker.address)

        def said_of_topics() -> list[str]:
            return [line["message"] for line in lines_of(broker.output) if ".topics." in line["logger"]]

        succeeded(commands("topic", "create", "zero"))
        succeeded(commands("config", "set", "log.level=error,server=info,topics=info"))
        succeeded(commands("topic", "create", "one"))
        shown = json.loads(succeeded(commands("config", "show", "log.level", "--json")))["log.level"]
        assert (shown["value"], shown["origin"]) == ("error,server=info,topics=info", "altered")
        broker.restart()
        succeeded(commands("topic", "create", "two"))
        succeeded(commands("config", "unset", "log.level"))
        succeeded(commands("topic", "create", "three"))
        assert broker.terminate() == 0
    altered, one, two = said_of_topics()
    assert altered.endswith("has altered settings of the broker: log.level=error,server=info,topics=info")
    assert (one, two) == ("topic 'one' created, partitions: 1", "topic 'two' created, partitions: 1")


def test_the_journal_gets_the_priority_of_each_line(tmp_path: Path) -> None:
    class Service(BrokerProcess):
        def _launch(self, stderr: int) -> Any:
            found = os.fstat(stderr)
            self.environment = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
            return super()._launch(stderr)

    with Service(tmp_path / "data", log_format="auto", authorization="acl") as broker:
        with WireClient(broker.address) as client, pytest.raises(AuthorizationFailed):
            client.create_topic("t")
        broker.terminate()
    priorities = {"info": "<6>", "warning": "<4>"}
    levels = [(line[:3], json.loads(line[3:])["level"]) for line in broker.output.splitlines()]
    assert {level for _, level in levels} == set(priorities)
    assert all(priority == priorities[level] for priority, level in levels)


def test_why_it_does_not_start_is_a_line_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerFailed) as failed:
        BrokerProcess(tmp_path / "file", log_format="auto").start()
    (line,) = lines_of(failed.value.output)
    assert line["level"] == "critical"
    assert str(tmp_path / "file") in line["message"]


def test_what_no_part_of_the_broker_logs_is_logged_too() -> None:
    program = """
import asyncio, threading, warnings
from warmlog_broker import BrokerConfig
from warmlog_broker.server.log_lines import log_to_stderr

class Ending:
    def __del__(self): raise KeyError("in __del__")

async def main():
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)

log_to_stderr(BrokerConfig())
warnings.warn("a warning of Python")
thread = threading.Thread(target=lambda: [][1])
thread.start()
thread.join()
Ending()
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    warning, thread, unraisable, callback = lines_of(ended.stderr)
    assert (warning["level"], warning["logger"]) == ("warning", "py.warnings")
    assert "a warning of Python" in warning["message"]
    assert (thread["level"], thread["exception"].splitlines()[-1]) == (
        "critical",
        "IndexError: list index out of range",
    )
    assert (unraisable["level"], "in __del__" in unraisable["exception"]) == ("error", True)
    assert callback["exception"].startswith("Traceback (most recent call last):\n")
    assert callback["exception"].endswith("ZeroDivisionError: division by zero")
