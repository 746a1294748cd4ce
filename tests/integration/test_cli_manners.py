"""How every command behaves: exit codes, streams, start-up, Ctrl-C, closed pipes."""

import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from integration.command_line import WARMLOG, CommandLine, environment, error_line, succeeded

OF_A_CLIENT = {"asyncio", "ssl", "logging", "socket", "warmlog_protocol", "warmlog_transport", "msgspec"}
"""What a command does not load unless it connects to a broker."""


@pytest.fixture
def nobody() -> Iterator[CommandLine]:
    """Commands that dial a port where nobody listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield CommandLine(f"127.0.0.1:{reserved.getsockname()[1]}")


def modules_loaded_by(*arguments: str, **variables: str) -> set[str]:
    """The top-level packages that a command imports."""
    command = [sys.executable, "-X", "importtime", "-m", "warmlog", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(**variables), timeout=180)
    assert done.returncode == 0, done.stderr
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}


def foreign(modules: set[str]) -> set[str]:
    """Those that are not part of Python, without what an environment loads at each start."""
    own = {"_distutils_hack", "sitecustomize", "usercustomize", "imported package", "org"}  # `copy` asks for Jython's
    return {each for each in modules if not each.startswith("__editable__")} - {*sys.stdlib_module_names} - own


def test_help_loads_nothing_that_it_does_not_need() -> None:
    for arguments in (
        [],
        ["topic"],
        ["consume"],
        ["produce"],
        ["log", "dump"],
        ["group", "reset"],
        ["status"],
        ["serve"],
        ["console"],
    ):
        loaded = modules_loaded_by(*arguments, "--help")
        assert foreign(loaded) == {"click", "warmlog"}, arguments
        assert not loaded & OF_A_CLIENT, arguments


@pytest.mark.parametrize("words", ["warmlog topic create --", "warmlog consume --", "warmlog produce --", "warmlog to"])
def test_completion_of_options_and_commands_loads_nothing_that_it_does_not_need(words: str) -> None:
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_WARMLOG_COMPLETE": "bash_complete"}
    loaded = modules_loaded_by(**variables)
    assert foreign(loaded) == {"click", "warmlog"}
    assert not loaded & OF_A_CLIENT


def test_a_small_command_loads_nothing_that_it_does_not_need(broker: BrokerProcess) -> None:
    loaded = modules_loaded_by("topic", "list", WARMLOG_BROKER=broker.address)
    assert foreign(loaded) == {
        *("click", "msgspec", "typing_extensions"),
        *("warmlog", "warmlog_protocol", "warmlog_transport"),
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["topic", "create"],
        ["topic", "create", "t", "--partitions", "0"],
        ["topic", "create", "t", "--config", "segment.bytes"],
        ["topic", "list", "--broker", "nohost:notaport"],
        ["produce", "t", "--acks", "2"],
        ["produce", "t", "--key-separator", ""],
        ["consume", "t", "--from", "yesterday"],
        ["consume", "t", "--to", "earliest"],
        ["consume", "t", "--format", "yaml"],
        ["consume", "t", "--format", "%x"],
        ["consume", "t", "--count", "0"],
        ["consume", "t", "--json", "--format", "raw"],
        ["offsets", "t", "--at", "17:00"],
        ["log", "dump"],
        ["log", "dump", "/nowhere/00000000000000000000.log"],
        ["serve", "--data-dir", "/tmp/x", "--set", "no.such.setting=1"],
        ["serve"],
    ],
    ids=" ".join,
)
def test_misuse_ends_with_2_and_prints_nothing_to_stdout(arguments: list[str], nobody: CommandLine) -> None:
    done = nobody(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr
    assert done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "create", "t"],
        ["topic", "describe", "t"],
        ["topic", "delete", "t", "--yes"],
        ["offsets", "t"],
        ["consume", "t", "--to", "latest"],
        ["produce", "t"],
    ],
    ids=" ".join,
)
def test_a_broker_that_is_not_there_is_one_line_and_1(arguments: list[str], nobody: CommandLine) -> None:
    done = nobody(*arguments, given=b"a line\n")
    address = nobody.environment["WARMLOG_BROKER"]
    assert address in error_line(done)
    assert done.stdout == b""


def test_debug_shows_the_traceback_as_well(nobody: CommandLine) -> None:
    for done in (nobody("--debug", "topic", "list"), CommandLine("127.0.0.1:1", WARMLOG_DEBUG="1")("topic", "list")):
        assert done.returncode == 1
        assert b"Traceback" in done.stderr
        assert b"warmlog: error: " in done.stderr


def test_the_commands_work_as_the_script_too(broker: BrokerProcess) -> None:
    script = Path(sys.executable).with_name("warmlog")
    if not script.exists():
        pytest.skip("warmlog is not installed here")
    done = subprocess.run(
        [script, "topic", "list"], env=environment(WARMLOG_BROKER=broker.address), capture_output=True, timeout=180
    )
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_a_consumer_quietly_with_130(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "endless"))
    succeeded(warmlog("produce", "endless", given=b"one\n"))
    consumer = warmlog.start("consume", "endless")
    assert consumer.stdout is not None
    assert consumer.stdout.readline() == b"one\n"
    consumer.send_signal(signal.SIGINT)
    stdout, stderr = consumer.communicate(timeout=180)
    assert (consumer.returncode, stdout, stderr) == (130, b"", b"")


def test_ctrl_c_ends_a_producer_that_waits_for_input(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "typed"))
    producer = warmlog.start("produce", "typed")
    assert producer.stdin is not None
    producer.stdin.write(b"a line\n")
    producer.stdin.flush()
    reader = warmlog("consume", "typed", "--count", "1")
    assert succeeded(reader) == b"a line\n"
    producer.send_signal(signal.SIGINT)
    assert producer.wait(40) == 130
    assert producer.stderr is not None
    assert producer.stderr.read() == b""
    for stream in (producer.stdin, producer.stdout, producer.stderr):
        assert stream is not None
        stream.close()


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(warmlog: CommandLine, tmp_path: Path) -> None:
    succeeded(warmlog("topic", "create", "long"))
    succeeded(warmlog("produce", "long", given=b"x" * 100 + b"\n" * 5_000))
    stderr = tmp_path / "stderr"
    consume = f"{shlex.join(WARMLOG)} consume long --to latest 2>{shlex.quote(str(stderr))}"
    pipeline = f"{consume} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", pipeline], env=warmlog.environment, capture_output=True, timeout=180)
    assert done.stdout == b"x" * 100 + b"\n0\n"
    assert stderr.read_bytes() == b""


@pytest.mark.parametrize("option", [[], ["--committed"]], ids=["all", "committed"])
def test_a_reader_that_has_seen_enough_ends_a_waiting_command(warmlog: CommandLine, option: list[str]) -> None:
    topic = f"quiet{len(option)}"
    succeeded(warmlog("topic", "create", topic))
    succeeded(warmlog("produce", topic, given=b"a\nb\n"))
    pipeline = f"{shlex.join([*WARMLOG, 'consume', topic, *option])} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", pipeline], env=warmlog.environment, capture_output=True, timeout=180)
    assert (done.stdout, done.stderr) == (b"a\n0\n", b"")


def test_a_slow_reader_of_a_pipe_gets_everything(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "slow"))
    succeeded(warmlog("produce", "slow", given=(b"x" * 100 + b"\n") * 5_000))
    pipeline = f"{shlex.join([*WARMLOG, 'consume', 'slow', '-n', '5000'])} | (sleep 1; wc -l)"
    done = subprocess.run(["bash", "-c", pipeline], env=warmlog.environment, capture_output=True, timeout=180)
    assert (int(done.stdout), done.stderr) == (5_000, b"")


def test_output_to_a_full_disk_is_an_error(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "somewhere"))
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*WARMLOG, "topic", "list"], stdout=full, stderr=subprocess.PIPE, env=warmlog.environment, timeout=180
        )
    assert done.returncode == 1
    assert b"warmlog: error: " in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("streams", "exit_code", "message"),
    [
        ("<&-", 1, "Bad file descriptor"),
        (">&-", 0, "1 record"),
        ("2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
        ("<&- >&- 2>&-", 1, ""),
    ],
)
def test_a_closed_or_full_stream_does_not_matter_to_what_is_sent(
    broker: BrokerProcess, warmlog: CommandLine, topic: str, streams: str, exit_code: int, message: str
) -> None:
    succeeded(warmlog("topic", "create", topic))
    command = f"echo x | {{ {shlex.join([*WARMLOG, 'produce', topic])} {streams}; }}"
    done = subprocess.run(["bash", "-c", command], env=warmlog.environment, capture_output=True, timeout=180)
    assert done.returncode == exit_code, done.stderr
    assert message in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
    read = succeeded(warmlog("consume", topic, "--to", "latest"))
    assert read == (b"" if exit_code else b"x\n")


def test_a_closed_output_is_an_error(broker: BrokerProcess, warmlog: CommandLine) -> None:
    command = f"{shlex.join([*WARMLOG, 'topic', 'list'])} >&-"
    done = subprocess.run(["bash", "-c", command], env=warmlog.environment, capture_output=True, timeout=180)
    assert error_line(done) == "warmlog: error: Bad file descriptor"
