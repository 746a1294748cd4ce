"""What `warmlog produce` takes beside plain lines, against a real broker."""

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from integration.command_line import WARMLOG, CommandLine, error_line, succeeded


@pytest.fixture
def made(warmlog: CommandLine, topic: str) -> str:
    """A topic of one partition for this test."""
    succeeded(warmlog("topic", "create", topic))
    return topic


def records(warmlog: CommandLine, topic: str) -> list[dict[str, object]]:
    lines = succeeded(warmlog("consume", topic, "--to", "latest", "--json")).splitlines()
    return [json.loads(line) for line in lines]


def test_one_value_needs_no_input(warmlog: CommandLine, made: str) -> None:
    succeeded(warmlog("topic", "alter", made, "--set", "retention.ms=-1"))
    command = ("produce", made, "--value", "über", "--key", "k", "-H", "a=1", "-H", "a=b=c", "-H", "none", "-H", "e=")
    produced = warmlog(*command, "--timestamp", "1700000000123", given=b"not read\n")
    assert b"1 record, " in produced.stderr
    (record,) = records(warmlog, made)
    assert (record["key"], record["value"], record["timestamp_ms"]) == ("k", "über", 1700000000123)
    assert record["headers"] == [
        {"name": "a", "value": "1"},
        {"name": "a", "value": "b=c"},
        {"name": "none", "value": None},
        {"name": "e", "value": ""},
    ]


def test_key_header_and_time_apply_to_every_line(warmlog: CommandLine, made: str) -> None:
    succeeded(warmlog("topic", "alter", made, "--set", "retention.ms=-1"))
    options = ("--key", "k", "--header", "from=test", "--timestamp", "2023-11-14T22:13:20Z")
    succeeded(warmlog("produce", made, *options, given=b"one\ntwo\n"))
    assert [(each["key"], each["value"], each["timestamp_ms"]) for each in records(warmlog, made)] == [
        ("k", "one", 1700000000000),
        ("k", "two", 1700000000000),
    ]
    assert all(each["headers"] == [{"name": "from", "value": "test"}] for each in records(warmlog, made))


def test_records_older_than_the_topic_keeps_are_warned_of_refused_or_accepted(warmlog: CommandLine, made: str) -> None:
    old = ("produce", made, "--value", "x", "--timestamp", "2013-07-01T00:00Z")
    assert b"is older than retention.ms=604800000" in warmlog(*old).stderr
    assert b"is older than" not in warmlog(*old, "--expired", "accept").stderr
    line = error_line(warmlog(*old, "--expired", "error"))
    assert 'or set expired to "accept"' in line
    assert "0 records were acknowledged" in line


def test_empty_is_null_if_asked_for(warmlog: CommandLine, made: str) -> None:
    succeeded(warmlog("produce", made, "--key-separator", ":", given=b"a:\n:b\n"))
    succeeded(warmlog("produce", made, "--key-separator", ":", "-Z", given=b"a:\n:b\n"))
    cells = [(each["key"], each["value"]) for each in records(warmlog, made)]
    assert cells == [("a", ""), ("", "b"), ("a", None), (None, "b")]


def test_a_null_value_deletes_its_key_from_a_compacted_topic(warmlog: CommandLine, topic: str) -> None:
    succeeded(warmlog("topic", "create", topic, "--config", "cleanup.policy=compact"))
    succeeded(warmlog("produce", topic, "--key", "gone", "--value", "", "--null-empty"))
    assert [(each["key"], each["value"]) for each in records(warmlog, topic)] == [("gone", None)]


def test_the_separator_is_shown_as_text(warmlog: CommandLine, made: str) -> None:
    assert "line 1 has no separator ':' between" in error_line(
        warmlog("produce", made, "--key-separator", ":", given=b"ab\n")
    )


def test_a_wrong_json_line_stops_with_its_number(warmlog: CommandLine, made: str) -> None:
    given = b'{"value": "a"}\n{"valeu": "b"}\n'
    line = error_line(warmlog("produce", made, "--format", "json", given=given))
    assert "line 2: unknown field 'valeu'; did you mean value?" in line
    assert "0 records were acknowledged" in line
    assert records(warmlog, made) == []


def test_one_acknowledged_record_is_singular(warmlog: CommandLine, made: str) -> None:
    producer = warmlog.start("produce", made, "--key-separator", ":")
    assert producer.stdin is not None
    producer.stdin.write(b"a:1\n")
    producer.stdin.flush()
    succeeded(warmlog("consume", made, "--count", "1"))
    _, stderr = producer.communicate(b"no separator\n", timeout=30)
    assert b"line 2 has no separator ':'" in stderr
    assert b"1 record was acknowledged before that" in stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--format", "json", "--key", "k"],
        ["--format", "json", "--header", "a=b"],
        ["--format", "json", "--timestamp", "0"],
        ["--format", "json", "--value", "x"],
        ["--format", "json", "-Z"],
        ["--format", "json", "--by-key", "--partition", "1"],
        ["--by-key"],
        ["--key", "k", "--key-separator", ":"],
        ["--header", "=x"],
        ["--timestamp", "yesterday"],
        ["--format", "xml"],
    ],
    ids=" ".join,
)
def test_options_that_contradict_each_other_are_misuse(warmlog: CommandLine, made: str, arguments: list[str]) -> None:
    done = warmlog("produce", made, *arguments, given=b"x\n")
    assert done.returncode == 2, done.stderr
    assert records(warmlog, made) == []


def test_a_terminal_is_told_how_to_end(warmlog: CommandLine, broker: BrokerProcess, made: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    stderr = tmp_path / "stderr"
    try:
        with stderr.open("wb") as file:
            command = [*WARMLOG, "produce", made]
            producer = subprocess.Popen(command, stdin=theirs, stderr=file, env=warmlog.environment)
        os.write(ours, b"typed\n\x04")
        assert producer.wait(30) == 0
    finally:
        os.close(ours)
        os.close(theirs)
    assert f"one record a line to {made}; Ctrl-D ends" in stderr.read_text()
    assert [each["value"] for each in records(warmlog, made)] == ["typed"]
