"""`warmlog serve`: settings, start, stop, and what it says when it cannot start."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forked import Forked, run_forked
from integration.command_line import CommandLine, environment, succeeded

READY = re.compile(r"warmlog: ready, listening on (127\.0\.0\.1:\d+)")


@contextmanager
def served(
    data_dir: Path, *arguments: str, said: list[str] | None = None, **variables: str
) -> Iterator[tuple[Forked, CommandLine]]:
    """A broker started by the command line, and commands against it. `said` gets its log up to the line "ready"."""
    given = ["serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--set", "log.format=text", *arguments]
    reading, writing = os.pipe()
    with open(reading) as stderr:
        process = Forked("warmlog", given, (0, 1, writing), environment(**variables))
        os.close(writing)
        try:
            said = [] if said is None else said
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
        assert process.wait(60) == 0
    with served(tmp_path / "data") as (_, warmlog):
        assert succeeded(warmlog("consume", "kept", "--to", "latest")) == b"a\n"


def test_ctrl_c_is_a_clean_stop(tmp_path: Path) -> None:
    with served(tmp_path) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


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


def test_foreign_variables_do_not_stop_it_and_the_log_names_them(tmp_path: Path) -> None:
    variables = {"WARMLOG_SERVICE_HOST": "10.0.0.1", "WARMLOG_PORT": "tcp://10.0.0.1:7400", "WARMLOG_HOME": "/"}
    said: list[str] = []
    with served(tmp_path / "data", said=said, **variables):
        [warning] = [line for line in said if "WARNING" in line and "not settings" in line]
    assert warning.endswith("ignored: WARMLOG_HOME, WARMLOG_PORT, WARMLOG_SERVICE_HOST\n")


def test_it_greets_with_one_short_line_and_what_was_changed(tmp_path: Path) -> None:
    said: list[str] = []
    with served(tmp_path / "data", "--set", "num.partitions=2", said=said) as (_, warmlog):
        succeeded(warmlog("topic", "create", "t"))
    assert "0 topics, 0 partitions, durability: acks=all acknowledges after fsync" in said[-1]
    with served(tmp_path / "data", "--set", "num.partitions=2", "--set", "retention.ms=1000", said=said) as (
        process,
        _,
    ):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert f"data in {tmp_path / 'data'}, 1 topic, 2 partitions, durability: " in said[-1]
    settings = next(line for line in reversed(said) if "differ from their defaults: " in line)
    assert "num.partitions=2" in settings
    assert "retention.ms=1000" in settings
    assert "flush.threads" not in settings
    assert len(settings) < 300


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


@pytest.mark.parametrize("names", [["notes.txt", "src"], [".git"], [f"f{number}" for number in range(9)]])
def test_a_directory_of_other_files_is_refused_and_left_alone(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    exit_code, said = serve("--data-dir", tmp_path, "--listen", "127.0.0.1:0")
    assert exit_code == 1
    assert f"{tmp_path} is not a data directory of warmlog and is not empty, it holds {', '.join(names[:5])}" in said
    assert "give an empty directory or a new one" in said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_new_volume_and_a_start_that_was_cut_short_are_served(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".lock").touch()
    with served(tmp_path) as (_, warmlog):
        succeeded(warmlog("topic", "list"))
