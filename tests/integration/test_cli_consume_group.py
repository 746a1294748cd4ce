"""`warmlog consume --group`: what is new since the last time, and what is left for the next."""

import re
import signal
from pathlib import Path

import pytest

from integration.command_line import CommandLine, Done, error_line, succeeded
from waiting import wait_until


@pytest.fixture
def filled(warmlog: CommandLine, topic: str) -> str:
    succeeded(warmlog("topic", "create", topic, "--partitions", "2"))
    succeeded(warmlog("produce", topic, "--partition", "0", given=b"a\nb\nc\n"))
    succeeded(warmlog("produce", topic, "--partition", "1", given=b"d\n"))
    return topic


def new(warmlog: CommandLine, topic: str, *options: str) -> Done:
    return warmlog("consume", topic, "--group", topic, "--to", "latest", *options)


def test_each_run_prints_what_is_new_since_the_last_one(warmlog: CommandLine, filled: str) -> None:
    assert sorted(succeeded(new(warmlog, filled)).split()) == [b"a", b"b", b"c", b"d"]
    assert succeeded(new(warmlog, filled)) == b""
    succeeded(warmlog("produce", filled, "--partition", "1", given=b"e\nf\n"))
    assert succeeded(new(warmlog, filled, "--count", "1")) == b"e\n"
    assert succeeded(new(warmlog, filled)) == b"f\n", "also within a batch"


def test_a_single_partition_is_read_without_membership(warmlog: CommandLine, filled: str) -> None:
    assert succeeded(new(warmlog, filled, "--partition", "0", "--count", "2")) == b"a\nb\n"
    assert succeeded(new(warmlog, filled, "--partition", "0")) == b"c\n"
    assert succeeded(new(warmlog, filled)) == b"d\n"


def test_what_could_not_be_written_out_is_not_committed(warmlog: CommandLine, filled: str) -> None:
    full = warmlog.start("consume", filled, "--group", filled, "--partition", "0", "--to", "latest")
    assert full.stdout is not None
    full.stdout.close()
    full.communicate()
    assert b"a" in succeeded(new(warmlog, filled, "--partition", "0"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_was_ended_is_continued(
    warmlog: CommandLine, filled: str, tmp_path: Path, number: signal.Signals
) -> None:
    running = warmlog.start("consume", filled, "--group", filled, "--partition", "0")
    assert running.stdout is not None
    assert [running.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
    running.send_signal(number)
    rest, _ = running.communicate(timeout=180)
    assert rest == b""
    succeeded(warmlog("produce", filled, "--partition", "0", given=b"g\n"))
    again = succeeded(new(warmlog, filled, "--partition", "0")).split()
    assert again[-1] == b"g"
    assert again in ([b"g"], [b"a", b"b", b"c", b"g"]), "nothing is lost; the last second may come again"
    if number is signal.SIGINT:
        assert again == [b"g"]


def test_members_share_the_partitions(warmlog: CommandLine, filled: str) -> None:
    first = warmlog.start("consume", filled, "--group", filled)
    second = warmlog.start("consume", filled, "--group", filled)

    def members() -> int:
        return warmlog("group", "members", filled).stdout.count(b"\n") - 1

    wait_until(lambda: members() == 2)
    wait_until(lambda: re.findall(rb"\t[01]\t([13])\t", warmlog("group", "describe", filled).stdout) == [b"3", b"1"])
    for running in (first, second):
        running.send_signal(signal.SIGINT)
    printed = b"".join(running.communicate(timeout=180)[0] for running in (first, second))
    assert sorted(printed.split()) == [b"a", b"b", b"c", b"d"]


def test_a_tail_of_a_group_is_refused(warmlog: CommandLine, filled: str) -> None:
    assert new(warmlog, filled, "--tail", "3").returncode == 2
    assert "nowhere" in error_line(new(warmlog, "nowhere"))
