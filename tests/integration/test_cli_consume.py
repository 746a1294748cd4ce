"""What of which topics `warmlog consume` prints, against a real broker."""

import os
import signal
import time
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from integration.command_line import CommandLine, error_line, succeeded
from warmlog.blocking import Admin, Producer


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
    consumer.communicate(timeout=30)
    assert consumer.returncode == 130


def test_a_broker_that_is_away_is_no_end(tmp_path: Path) -> None:
    count, profile = 100_000, tmp_path / "profile.toml"
    profile.write_text("request_timeout_ms = 500\n")
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
            stdout, stderr = consumer.communicate(timeout=30)
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
