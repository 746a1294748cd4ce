"""`warmlog serve`: settings, start, stop, and what it says when it cannot start."""

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forked import Forked, run_forked
from integration.command_line import CommandLine, environment, succeeded

READY = re.compile(r"warmlog: ready, listening on (127\.0\.0\.1:\d+)")


@contextmanager
def served(data_dir: Path, *arguments: str, **variables: str) -> Iterator[tuple[Forked, CommandLine]]:
    """A broker started by the command line, and commands against it."""
    given = ["serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", *arguments]
    reading, writing = os.pipe()
    with open(reading) as stderr:
        process = Forked("warmlog", given, (0, 1, writing), environment(**variables))
        os.close(writing)
        try:
            said = []
            for line in stderr:
                said.append(line)
                ready = READY.search(line)
                if ready:
                    break
            else:
                pytest.fail("".join(said))
            yield process, CommandLine(ready[1])
        finally:
            process.kill()
            process.wait()


def serve(*arguments: object) -> tuple[int, str]:
    """The exit code of a broker that is expected not to start, and what it says."""
    done = run_forked("warmlog", ["serve", *arguments], environment())
    return done.returncode, done.stderr.decode()


def test_a_broker_serves_until_sigterm_and_keeps_what_it_has(tmp_path: Path) -> None:
    with served(tmp_path / "data") as (process, warmlog):
        succeeded(warmlog("topic", "create", "kept"))
        succeeded(warmlog("produce", "kept", given=b"a\n"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with served(tmp_path / "data") as (_, warmlog):
        assert succeeded(warmlog("consume", "kept", "--to", "latest")) == b"a\n"


def test_ctrl_c_is_a_clean_stop(tmp_path: Path) -> None:
    with served(tmp_path) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_settings_come_from_the_file_the_environment_and_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "warmlog.toml"
    config.write_text("[num]\npartitions = 2\n")
    variables = {"WARMLOG_DEBUG": "1", "WARMLOG_BROKER": "127.0.0.1:1"}

    def partitions_of_a_new_topic(*arguments: str, **more: str) -> int:
        with served(tmp_path / "data", *arguments, **variables, **more) as (_, warmlog):
            succeeded(warmlog("topic", "create", "t"))
            described = succeeded(warmlog("offsets", "t")).splitlines()
            succeeded(warmlog("topic", "delete", "t", "--yes"))
        return len(described)

    from_file = ("--config", str(config))
    assert partitions_of_a_new_topic(*from_file) == 2
    assert partitions_of_a_new_topic(*from_file, WARMLOG_NUM_PARTITIONS="3") == 3
    assert partitions_of_a_new_topic(*from_file, "--set", "num.partitions=4", WARMLOG_NUM_PARTITIONS="3") == 4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--set", "num.partition=1"], "num.partitions"),
        (["--set", "num.partitions=none"], "num.partitions"),
        (["--set", "num.partitions"], "NAME=VALUE"),
        (["--listen", "here"], "HOST:PORT"),
        (["--config", "/nowhere.toml"], "/nowhere.toml"),
    ],
)
def test_settings_that_cannot_be_are_misuse(tmp_path: Path, arguments: list[str], named: str) -> None:
    exit_code, said = serve("--data-dir", tmp_path, *arguments)
    assert exit_code == 2
    assert named in said


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with served(tmp_path):
        exit_code, said = serve("--data-dir", tmp_path, "--listen", "127.0.0.1:0")
    assert exit_code == 1
    assert "lock" in said
    assert "Traceback" not in said


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        exit_code, said = serve("--data-dir", tmp_path, "--listen", address)
    assert exit_code == 1
    assert address in said
    assert "Traceback" not in said


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    exit_code, said = serve("--data-dir", tmp_path / "file" / "data", "--listen", "127.0.0.1:0")
    assert exit_code == 1
    assert os.fspath(tmp_path / "file") in said
    assert "Traceback" not in said
