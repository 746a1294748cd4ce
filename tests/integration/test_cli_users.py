"""`warmlog user`, and how the command line logs in: with passwords that are in no list of processes and in no log."""

import json
import os
import pty
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

import warmlog
import warmlog.blocking
from broker_process import BrokerProcess
from integration.command_line import WARMLOG, CommandLine, at_terminal

PASSWORD = "geheim-0815"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "alice.password").write_text(f"{PASSWORD}\n")
    (tmp_path / "wrong.password").write_text("falsch-4711\n")
    return tmp_path


@pytest.fixture
def broker(files: Path) -> Iterator[BrokerProcess]:
    offline = CommandLine("127.0.0.1:1")
    added = offline("user", "add", "alice", "--password-file", files / "alice.password", "--data-dir", files / "data")
    assert added.returncode == 0, added.stderr
    with BrokerProcess(
        files / "data", listeners="main=sasl_plaintext://127.0.0.1:0", sasl_failure_delay_ms=50, log_level="debug"
    ) as running:
        yield running


def command_line(broker: BrokerProcess, files: Path) -> CommandLine:
    return CommandLine(broker.address, WARMLOG_USERNAME="alice", WARMLOG_PASSWORD_FILE=str(files / "alice.password"))


def test_users_are_managed_without_a_broker(tmp_path: Path) -> None:
    commands = CommandLine("127.0.0.1:1")
    directory = tmp_path / "data"
    assert commands("user", "add", "alice", "--data-dir", directory, given=b"one\n").returncode == 0
    token = commands("user", "add", "etl", "--token", "--data-dir", directory)
    assert len(token.stdout.strip()) > 40
    again = commands("user", "add", "alice", "--data-dir", directory, given=b"one\n")
    assert (again.returncode, b"exists" in again.stderr) == (1, True)
    rotated = commands("user", "rotate", "alice", "--grace", "1h", "--data-dir", directory, given=b"two\n")
    assert rotated.returncode == 0, rotated.stderr
    (until,) = re.findall(rb"rotated user alice: the old password works until (.+), with --grace 0", rotated.stderr)
    assert 3500 < datetime.fromisoformat(until.decode()).timestamp() - time.time() < 3700
    assert commands("user", "rotate", "nobody", "--data-dir", directory, given=b"x\n").returncode == 1
    listed = commands("user", "list", "--data-dir", directory, "--json")
    users = {user["name"]: user for user in json.loads(listed.stdout)}
    assert users["alice"]["previous_until"] is not None
    assert (users["etl"]["is_token"], users["etl"]["previous_until"]) == (True, None)
    assert commands("user", "delete", "alice", "etl", "--yes", "--data-dir", directory).returncode == 0
    assert json.loads(commands("user", "list", "--data-dir", directory, "--json").stdout) == []
    assert commands("user", "delete", "alice", "--yes", "--data-dir", directory).returncode == 1


def test_a_broker_that_asks_for_passwords_says_that_nobody_has_one(tmp_path: Path) -> None:
    warning = "WARNING warmlog: there are no users"
    with BrokerProcess(tmp_path / "data", listeners="main=sasl_plaintext://127.0.0.1:0") as broker:
        assert warning in broker.output
        assert broker.terminate() == 0
    added = CommandLine("127.0.0.1:1")("user", "add", "alice", "--data-dir", tmp_path / "data", given=b"one\n")
    assert added.returncode == 0, added.stderr
    with BrokerProcess(tmp_path / "data", listeners="main=sasl_plaintext://127.0.0.1:0") as broker:
        assert warning not in broker.output


def test_users_of_a_running_broker_are_not_changed_in_its_directory(broker: BrokerProcess, files: Path) -> None:
    added = CommandLine(broker.address)("user", "add", "bob", "--data-dir", files / "data", given=b"x\n")
    assert added.returncode == 1
    listed = CommandLine(broker.address)("user", "list", "--data-dir", files / "data", "--json")
    assert [user["name"] for user in json.loads(listed.stdout)] == ["alice"]


def login_shown(file: Path, **variables: str) -> dict[str, tuple[str, str]]:
    """What `warmlog profile` says of user, password and mechanism: values, and where they come from."""
    commands = CommandLine("127.0.0.1:1", WARMLOG_CONFIG=str(file), **variables)
    settings = json.loads(commands("profile", "--json").stdout)["settings"]
    names = ("username", "password", "sasl_mechanism")
    return {name: (settings[name]["value"], settings[name]["origin"]) for name in names}


def test_the_profile_says_who_logs_in_and_by_what(files: Path) -> None:
    file = files / "config.toml"
    file.write_text('username = "alice"\npassword_file = "~/alice.password"\n')
    from_file = {"username": ("alice", str(file)), "password": ("(in ~/alice.password)", str(file))}
    assert login_shown(file) == {**from_file, "sasl_mechanism": ("SCRAM-SHA-256", "default")}
    assert login_shown(
        file, WARMLOG_USERNAME="bob", WARMLOG_PASSWORD=PASSWORD, WARMLOG_SASL_MECHANISM="SCRAM-SHA-512"
    ) == {
        "username": ("bob", "WARMLOG_USERNAME"),
        "password": ("(hidden)", "WARMLOG_PASSWORD"),
        "sasl_mechanism": ("SCRAM-SHA-512", "WARMLOG_SASL_MECHANISM"),
    }
    both = login_shown(file, WARMLOG_PASSWORD=PASSWORD, WARMLOG_PASSWORD_FILE="/tmp/other")
    assert both["password"] == ("(in /tmp/other)", "WARMLOG_PASSWORD_FILE")


def test_commands_log_in_by_options_environment_and_profile(broker: BrokerProcess, files: Path) -> None:
    plain = CommandLine(broker.address)
    refused = plain("topic", "list")
    assert (refused.returncode, b"--username and --password-file" in refused.stderr) == (1, True)
    options = ("--username", "alice", "--password-file", files / "alice.password")
    assert plain(*options, "topic", "create", "t").returncode == 0
    variables = CommandLine(broker.address, WARMLOG_USERNAME="alice", WARMLOG_PASSWORD=PASSWORD)
    assert variables("produce", "t", given=b"one\n").returncode == 0
    profile = files / "config.toml"
    profile.write_text(
        f'broker = "{broker.address}"\nusername = "alice"\n'
        f'[production]\npassword_file = "{files / "alice.password"}"\nsasl_mechanism = "SCRAM-SHA-512"\n'
    )
    by_profile = CommandLine(broker.address, WARMLOG_CONFIG=str(profile))
    consumed = by_profile("--profile", "production", "consume", "t", "--from", "earliest", "--to", "latest")
    assert b"one" in consumed.stdout, consumed.stderr
    half = by_profile("topic", "list")
    assert (half.returncode, b"belong together" in half.stderr) == (1, True)


def test_users_of_a_running_broker_are_managed_by_commands(broker: BrokerProcess, files: Path) -> None:
    commands = command_line(broker, files)
    assert commands("user", "add", "bob", given=b"one\n").returncode == 0
    token = commands("user", "add", "etl", "--token", "--json")
    secret = json.loads(token.stdout)["password"]
    with warmlog.blocking.Admin(broker.address, username="etl", password=secret):
        pass
    at_once = commands("user", "rotate", "bob", "--grace", "0", given=b"two\n")
    assert (at_once.returncode, at_once.stderr) == (0, b"warmlog: rotated user bob: the old password works no longer\n")
    other = commands("user", "rotate", "etl", "--grace", "0").stdout.decode().strip()
    for name, password in (("bob", "two"), ("etl", other)):
        with warmlog.blocking.Admin(broker.address, username=name, password=password):
            pass
    assert commands("user", "delete", "bob", "etl", "--yes").returncode == 0
    assert [user["name"] for user in json.loads(commands("user", "list", "--json").stdout)] == ["alice"]


def dialogue(commands: CommandLine, *arguments: str, answers: dict[bytes, bytes]) -> tuple[int, bytes]:
    """Exit code and output of a command at a terminal; each of `answers` is typed once its prompt is there."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [*WARMLOG, *arguments], stdin=terminal, stdout=terminal, stderr=terminal, env=commands.environment
    )
    os.close(terminal)
    shown, waiting = b"", dict(answers)
    while True:
        try:
            shown += os.read(controller, 65536)
        except OSError:  # the other end is closed
            break
        for prompt in [prompt for prompt in waiting if prompt in shown]:
            os.write(controller, waiting.pop(prompt) + b"\n")
    os.close(controller)
    assert not waiting, shown
    return process.wait(60), shown


def test_a_terminal_is_asked_for_passwords_and_does_not_show_them(broker: BrokerProcess, files: Path) -> None:
    answers = {b"New password of user bob: ": b"zwei-0815", b"The same again: ": b"zwei-0815"}
    code, shown = dialogue(command_line(broker, files), "user", "add", "bob", answers=answers)
    assert code == 0, shown
    assert b"zwei-0815" not in shown
    answers = {b"Password of user bob: ": b"zwei-0815"}
    code, shown = dialogue(CommandLine(broker.address), "--username", "bob", "user", "list", answers=answers)
    assert code == 0, shown
    assert b"alice" in shown
    assert b"zwei-0815" not in shown


def test_no_secret_is_in_a_log_an_error_a_description_or_the_processes(broker: BrokerProcess, files: Path) -> None:
    commands = command_line(broker, files)
    shown = [
        commands("user", "add", "bob", given=b"zwei-0815\n"),
        commands("user", "rotate", "bob", given=b"drei-0815\n"),
    ]
    wrong = CommandLine(
        broker.address,
        WARMLOG_USERNAME="falsch-4711",  # a password that was typed in the name's place
        WARMLOG_PASSWORD_FILE=str(files / "wrong.password"),
        WARMLOG_DEBUG="1",
    )
    shown += [wrong("topic", "list"), commands("status"), commands("user", "list"), commands("profile")]
    with warmlog.blocking.Admin(broker.address, username="alice", password=PASSWORD) as admin:
        described = repr(admin.describe_broker()) + repr(admin.list_users()) + repr(vars(admin._client))
    for process in Path("/proc").glob("[0-9]*"):
        try:
            described += (process / "cmdline").read_text(errors="replace")
        except OSError:
            continue
    broker.terminate()
    everything = broker.output + described + "".join((done.stdout + done.stderr).decode() for done in shown)
    assert "authentication of 127.0.0.1" in broker.output
    assert "there is no such user" in broker.output
    for secret in (PASSWORD, "falsch-4711", "zwei-0815", "drei-0815"):
        assert secret not in everything


@pytest.fixture
def other(files: Path) -> Iterator[BrokerProcess]:
    """Another broker, which knows bob alone."""
    (files / "bob.password").write_text("other-1234\n")
    offline = CommandLine("127.0.0.1:1")
    added = offline("user", "add", "bob", "--password-file", files / "bob.password", "--data-dir", files / "other")
    assert added.returncode == 0, added.stderr
    with BrokerProcess(files / "other", listeners="main=sasl_plaintext://127.0.0.1:0") as running:
        yield running


def test_a_topic_is_copied_with_another_login(broker: BrokerProcess, other: BrokerProcess, files: Path) -> None:
    alice = command_line(broker, files)
    assert alice("topic", "create", "orders", "--partitions", "2").returncode == 0
    assert alice("produce", "orders", given=b"one\ntwo\n").returncode == 0
    copy = ("topic", "copy", "orders", "orders", "--to-broker", other.address)
    refused = alice(*copy)
    assert (refused.returncode, b"copied" in refused.stderr) == (1, False), refused.stderr
    as_bob = ("--to-username", "bob", "--to-password-file", files / "bob.password")
    copied = alice(*copy, *as_bob)
    assert copied.returncode == 0, copied.stderr
    profile = files / "config.toml"
    profile.write_text(
        f'[other]\nbroker = "{other.address}"\nusername = "bob"\npassword_file = "{files / "bob.password"}"\n'
    )
    alice.environment["WARMLOG_CONFIG"] = str(profile)
    copied = alice("topic", "copy", "orders", "orders", "--to-profile", "other")
    assert copied.returncode == 0, copied.stderr
    bob = CommandLine(other.address, WARMLOG_USERNAME="bob", WARMLOG_PASSWORD_FILE=str(files / "bob.password"))
    read = bob("consume", "orders", "--to", "latest")
    assert sorted(read.stdout.splitlines()) == [b"one", b"one", b"two", b"two"]
    unknown = alice("topic", "copy", "orders", "orders", "--to-profile", "othr")
    assert (unknown.returncode, b"did you mean other?" in unknown.stderr) == (2, True)


def test_a_command_that_connects_several_times_asks_for_the_password_once(broker: BrokerProcess, files: Path) -> None:
    assert command_line(broker, files)("topic", "create", "dear").returncode == 0
    asked = CommandLine(broker.address, WARMLOG_USERNAME="alice")
    exit_code, lines = at_terminal(asked, "topic", "delete", "dear", "--yes", typed=f"{PASSWORD}\n".encode())
    assert exit_code == 0, lines
    assert sum("Password of user alice" in line for line in lines) == 1
