"""`warmlog produce` and `warmlog consume` against a real broker: what is taken, what of which topics is printed."""

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from integration.command_line import WARMLOG, CommandLine, error_line, succeeded
from warmlog.blocking import Admin, Producer


def consumed(warmlog: CommandLine, topic: str, *arguments: object) -> bytes:
    return succeeded(warmlog("consume", topic, "--to", "latest", *arguments))


def test_lines_come_back_as_they_were_sent(warmlog: CommandLine, made: str) -> None:
    lines = b"first\n\n\xff\x00 binary\r\nno newline at the end"
    produced = warmlog("produce", made, given=lines)
    assert succeeded(produced) == b""
    assert b"4 records" in produced.stderr
    assert consumed(warmlog, made) == lines + b"\n"


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_come_back_in_order_with_every_compression(warmlog: CommandLine, made: str, compression: str) -> None:
    lines = b"".join(b"%d,some text that repeats itself\n" % number for number in range(50_000))
    succeeded(warmlog("produce", made, "--compression", compression, given=lines))
    assert consumed(warmlog, made) == lines


def test_records_that_are_not_acknowledged_are_delivered(warmlog: CommandLine, made: str) -> None:
    succeeded(warmlog("produce", made, "--acks", "0", given=b"a\nb\n"))
    deadline = time.monotonic() + 40
    while consumed(warmlog, made) != b"a\nb\n":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_input_is_no_record(warmlog: CommandLine, made: str) -> None:
    produced = warmlog("produce", made)
    assert succeeded(produced) == b""
    assert b"0 records" in produced.stderr
    assert consumed(warmlog, made) == b""


def test_the_summary_is_json_for_scripts(warmlog: CommandLine, made: str) -> None:
    summary = json.loads(succeeded(warmlog("produce", made, "--json", given=b"ab\ncd\n")))
    assert (summary["topic"], summary["records"], summary["bytes"], summary["acks"]) == (made, 2, 4, "all")
    assert summary["records_per_s"] > 0


def test_keys_are_parted_from_values_and_choose_the_partition(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "keyed", "--partitions", "4"))
    succeeded(warmlog("produce", "keyed", "--key-separator", "\\t", given=b"UA\tone\nAA\ttwo\nUA\tthree\ttabs\n"))
    lines = consumed(warmlog, "keyed", "--format", "%p %k %v").splitlines()
    partition_of = {line.split()[1]: line.split()[0] for line in lines}
    united = [line for line in lines if b" UA " in line]
    assert united == [partition_of[b"UA"] + b" UA one", partition_of[b"UA"] + b" UA three\ttabs"]


def test_a_line_without_its_key_stops_with_what_was_acknowledged(warmlog: CommandLine, made: str) -> None:
    line = error_line(warmlog("produce", made, "--key-separator", ":", given=b"a:b\nab\n"))
    assert "line 2 has no separator ':' between" in line
    assert "0 records were acknowledged" in line


def test_a_record_over_the_limit_stops_with_what_was_acknowledged(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "narrow", "--config", "max.message.bytes=1000"))
    line = error_line(warmlog("produce", "narrow", given=b"x" * 2000 + b"\n"))
    assert "max.message.bytes=1000" in line
    assert "0 records were acknowledged" in line


def test_an_unknown_topic_or_partition_is_told(warmlog: CommandLine, made: str) -> None:
    assert "nowhere" in error_line(warmlog("produce", "nowhere", given=b"a\n"))
    assert "nowhere" in error_line(warmlog("consume", "nowhere", "--to", "latest"))
    assert "partition" in error_line(warmlog("produce", made, "--partition", "7", given=b"a\n"))
    assert "partition" in error_line(warmlog("consume", made, "--partition", "7", "--to", "latest"))


def test_places_and_counts_choose_what_is_printed(warmlog: CommandLine, made: str) -> None:
    succeeded(warmlog("produce", made, given=b"0\n1\n2\n3\n4\n"))
    assert consumed(warmlog, made, "--from", "3") == b"3\n4\n"
    assert consumed(warmlog, made, "--from", "latest") == b""
    assert consumed(warmlog, made, "--from", "2013-07-01T00:00", "--count", "2") == b"0\n1\n"
    assert consumed(warmlog, made, "--from", "2199-01-01") == b""
    assert succeeded(warmlog("consume", made, "--from", "1", "--to", "4")) == b"1\n2\n3\n"
    assert succeeded(warmlog("consume", made, "--to", "2013-07-01")) == b""
    assert succeeded(warmlog("consume", made, "--from", "2", "--count", "1")) == b"2\n"
    assert "9" in error_line(warmlog("consume", made, "--from", "9", "--to", "latest"))


def test_json_is_the_format_json(warmlog: CommandLine, made: str) -> None:
    succeeded(warmlog("produce", made, "--key-separator", "=", given=b"k=v\nother=\xff\n"))
    lines = consumed(warmlog, made, "--format", "json")
    assert consumed(warmlog, made, "--json") == lines
    first, second = map(json.loads, lines.splitlines())
    assert (first["topic"], first["partition"], first["offset"]) == (made, 0, 0)
    assert (first["key"], first["value"]) == ("k", "v")
    assert (second["key"], second["value"], second["value_encoding"]) == ("other", "/w==", "base64")
    assert first["timestamp_ms"] > 1_600_000_000_000


def test_without_an_end_records_are_printed_as_they_come(warmlog: CommandLine, made: str) -> None:
    consumer = warmlog.start("consume", made, "--format", "%o %v", "--count", "2")
    assert consumer.stdout is not None
    succeeded(warmlog("produce", made, given=b"early\n"))
    assert consumer.stdout.readline() == b"0 early\n"
    succeeded(warmlog("produce", made, given=b"late\nlater\n"))
    stdout, _ = consumer.communicate(timeout=100)
    assert (consumer.returncode, stdout) == (0, b"1 late\n")


def test_a_killed_broker_is_waited_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("killed")) as broker:
        warmlog = CommandLine(broker.address)
        succeeded(warmlog("topic", "create", "survivor"))
        producer = warmlog.start("produce", "survivor")
        assert producer.stdin is not None
        producer.stdin.write(b"before\n")
        producer.stdin.flush()
        assert succeeded(warmlog("consume", "survivor", "--count", "1")) == b"before\n"
        broker.kill()
        producer.stdin.write(b"while it is down\n")
        producer.stdin.flush()
        time.sleep(0.3)
        broker.start()
        _, stderr = producer.communicate(b"after\n", timeout=100)
        assert producer.returncode == 0, stderr.decode()
        assert consumed(warmlog, "survivor") == b"before\nwhile it is down\nafter\n"


def test_ctrl_c_does_not_wait_for_a_broker_that_is_gone(tmp_path_factory: pytest.TempPathFactory) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("gone")) as broker:
        warmlog = CommandLine(broker.address)
        succeeded(warmlog("topic", "create", "lost"))
        producer, consumer = warmlog.start("produce", "lost"), warmlog.start("consume", "lost")
        assert producer.stdin is not None
        assert consumer.stdout is not None
        producer.stdin.write(b"before\n")
        producer.stdin.flush()
        assert consumer.stdout.readline() == b"before\n"
        broker.kill()
        producer.stdin.write(b"never sent\n")
        producer.stdin.flush()
        for process in (producer, consumer):
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=100)
            assert process.returncode == 130
            assert b"Traceback" not in stderr


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
    _, stderr = producer.communicate(b"no separator\n", timeout=100)
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
        assert producer.wait(40) == 0
    finally:
        os.close(ours)
        os.close(theirs)
    assert f"one record a line to {made}; Ctrl-D ends" in stderr.read_text()
    assert [each["value"] for each in records(warmlog, made)] == ["typed"]


@pytest.fixture(scope="module")
def commands(broker: BrokerProcess) -> CommandLine:
    """Commands that find two topics: `orders` with partitions of 5 and 2 records, and `payments` with one record."""
    warmlog = CommandLine(broker.address)
    succeeded(warmlog("topic", "create", "orders", "--partitions", "2"))
    succeeded(warmlog("topic", "create", "payments"))
    succeeded(warmlog("produce", "orders", "--partition", "0", given=b"0\n1\n2\n3\n4\n"))
    succeeded(warmlog("produce", "orders", "--partition", "1", given=b"a\nb\n"))
    succeeded(warmlog("produce", "payments", "--value", "paid"))
    return warmlog


def printed(commands: CommandLine, *arguments: object) -> list[bytes]:
    return sorted(succeeded(commands("consume", *arguments)).splitlines())


def test_several_topics_are_printed_and_each_once(commands: CommandLine) -> None:
    lines = printed(commands, "orders", "payments", "orders", "--to", "latest", "--format", "%t %v")
    orders = [b"orders " + value for value in (b"0", b"1", b"2", b"3", b"4", b"a", b"b")]
    assert lines == [*orders, b"payments paid"]


def test_a_pattern_matches_whole_names(commands: CommandLine) -> None:
    assert printed(commands, "--regex", "pay.*", "--to", "latest") == [b"paid"]
    assert len(printed(commands, "--regex", "pay.*", "o.*s", "--to", "latest")) == 8
    assert "no topic matches 'pay'" in error_line(commands("consume", "--regex", "pay", "--to", "latest"))


def test_tail_is_the_end_of_every_partition_and_then_stops(commands: CommandLine) -> None:
    assert printed(commands, "orders", "--tail", "1") == [b"4", b"b"]
    assert printed(commands, "orders", "--tail", "3") == [b"2", b"3", b"4", b"a", b"b"]
    assert printed(commands, "orders", "--tail", "3", "-n", "1", "--partition", "0") == [b"2"]
    assert printed(commands, "orders", "--tail", "1", "--to", "latest") == [b"4", b"b"]


def test_tail_can_be_followed(commands: CommandLine) -> None:
    succeeded(commands("topic", "create", "followed"))
    succeeded(commands("produce", "followed", given=b"1\n2\n3\n"))
    consumer = commands.start("consume", "followed", "--tail", "1", "-f")
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == b"3\n"
    succeeded(commands("produce", "followed", given=b"4\n"))
    assert consumer.stdout.readline() == b"4\n"
    consumer.send_signal(signal.SIGINT)
    consumer.communicate(timeout=100)
    assert consumer.returncode == 130


def test_a_broker_that_is_away_is_no_end(tmp_path: Path) -> None:
    count, profile = 100_000, tmp_path / "profile.toml"
    profile.write_text("request_timeout_ms = 2000\n")
    with BrokerProcess(tmp_path / "data") as broker:
        with Admin(broker.address) as admin, Producer(broker.address) as producer:
            admin.create_topic("t")
            producer.send_many("t", [bytes(1000)] * count)
        patient = CommandLine(broker.address)
        for commands, signals, exit_code in (
            (patient, (signal.SIGSTOP, signal.SIGCONT), 0),
            (CommandLine(broker.address, WARMLOG_CONFIG=str(profile)), (signal.SIGKILL,), 1),
        ):
            consumer = commands.start("consume", "t", "--timeout", "300ms", "--format", "%o")
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == b"0\n"
            os.kill(broker.pid, signals[0])
            for further in signals[1:]:
                time.sleep(1)
                os.kill(broker.pid, further)
            stdout, stderr = consumer.communicate(timeout=100)
            assert consumer.returncode == exit_code, stderr
            assert stdout.endswith(b"%d\n" % (count - 1)) == (exit_code == 0)
            assert (b"warmlog: error: no connection to broker" in stderr) == (exit_code == 1)


def test_a_timeout_ends_well_when_nothing_arrives(commands: CommandLine) -> None:
    started = time.monotonic()
    assert printed(commands, "payments", "--timeout", "300ms") == [b"paid"]
    assert printed(commands, "payments", "--from", "latest", "--timeout", "300ms") == []
    assert time.monotonic() - started >= 0.6


def test_an_offset_that_a_partition_lacks_is_refused_before_anything_is_printed(commands: CommandLine) -> None:
    done = commands("consume", "orders", "--from", "4", "--to", "latest")
    line = error_line(done)
    assert done.stdout == b""
    assert "offset 4 is not in the log: orders-1 has offsets 0 to 2" in line
    assert "--partition N" in line
    assert "on_out_of_range" not in line
    assert printed(commands, "orders", "--from", "4", "--to", "latest", "--partition", "0") == [b"4"]
    assert printed(commands, "orders", "--from", "2", "--to", "latest") == [b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tail", "0"],
        ["--tail", "3", "--from", "2"],
        ["--tail", "3", "--to", "2026-11-20T08:00"],
        ["--tail", "3", "-f", "--to", "latest"],
        ["--follow"],
        ["--from", "5", "--to", "2"],
        ["--from", "-5", "--to", "-10"],
        ["--from", "-5m", "--to", "-1h"],
        ["--timeout", "soon"],
        ["--timeout", "10"],
        ["--timeout", "0s"],
        ["--regex", "("],
    ],
    ids=" ".join,
)
def test_misuse_is_refused(commands: CommandLine, arguments: list[str]) -> None:
    done = commands("consume", "orders", *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == b""
