"""What operators type, against a real broker: status, changes of topics, tables at a terminal, completion, profile."""

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from fcntl import ioctl
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO

import pytest

from broker_process import BrokerProcess
from broker_thread import BrokerThread
from forked import run_forked
from integration.command_line import TERMINAL_COLUMNS, WARMLOG, CommandLine, at_terminal, error_line, succeeded
from warmlog import blocking
from warmlog.cli.commands.status import HOME_AND_CLEAR, WATCHED_GROUPS
from warmlog.cli.terminal import tables
from warmlog_protocol.messages import HandshakeResponse

LONG_TOPIC = "warehouse-" + "shipments-" * 12 + "europe"
PIPED_ONLY = {
    "error",
    "total",
    "usable",
    "bytes",
    "offset",
    "lag",
    "future",
    "no",
    "leader",
    "epoch",
    "log",
    "start",
    "last",
    "stable",
} | {"high", "watermark", "end", "uncommitted"}
"""Headings that only scripts see."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a long path, a topic with a long name and a default that the operator set."""
    directory = tmp_path_factory.mktemp("a-directory-of-a-name-that-no-table-of-eighty-columns-can-show-in-full")
    with BrokerProcess(directory, retention_ms=1_000_000) as process:
        warmlog = CommandLine(process.address)
        succeeded(warmlog("topic", "create", LONG_TOPIC, "--partitions", "2"))
        succeeded(warmlog("produce", LONG_TOPIC, "--partition", "1", given=b"value\n" * 2353))
        yield process


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "describe", LONG_TOPIC],
        ["topic", "describe", LONG_TOPIC, "--all"],
        ["status", "--interval", "50ms"],
        ["log", "dirs"],
        ["offsets", LONG_TOPIC],
        ["topic", "delete-records", LONG_TOPIC, "--partition", "1", "--offset", "0", "--yes"],
        ["profile"],
    ],
    ids=lambda arguments: " ".join(arguments).replace(LONG_TOPIC, "LONG"),
)
def test_every_table_fits_80_columns_and_breaks_no_word_or_number(warmlog: CommandLine, arguments: list[str]) -> None:
    words = words_of(warmlog, arguments)
    exit_code, lines = at_terminal(warmlog, *arguments)
    if arguments[0] == "status":  # without what is measured and has changed, as the room on the disk
        words &= words_of(warmlog, arguments)
    assert exit_code == 0
    assert [line for line in lines if len(line) > TERMINAL_COLUMNS and LONG_TOPIC not in line] == []
    shown = set(" ".join(lines).split())
    for word in words:
        assert word in shown or f"{word}," in shown or is_shortened(word, shown) or is_for_people(word), word


def words_of(warmlog: CommandLine, arguments: list[str]) -> set[str]:
    return set(succeeded(warmlog(*arguments)).decode().replace(",", " ").split())


def is_shortened(word: str, shown: set[str]) -> bool:
    """Whether a part of a name or path was left out, and nothing else."""
    cut = [each.partition("…") for each in shown if "…" in each]
    return any(word.startswith(head) and word.endswith(tail) for head, _, tail in cut)


def is_for_people(word: str) -> bool:
    """Whether a terminal shows it in another form: a number, which may be another by now, or a name that other words
    are around in a pipe."""
    elsewhere = (LONG_TOPIC, "warmlog-python-")
    is_number = word.strip(",-").replace(".", "", 1).isdigit()
    return is_number or ":" in word or word in PIPED_ONLY or word.startswith(elsewhere)


def test_describe_begins_with_what_users_ask_first(warmlog: CommandLine) -> None:
    _, lines = at_terminal(warmlog, "topic", "describe", LONG_TOPIC)
    facts = {line.split(maxsplit=1)[0]: line for line in lines if line}
    assert facts["records"].endswith("2,353")
    assert "after 1,000 seconds (cleanup.policy=delete)" in facts["retention"]
    assert re.search(r"last record  20\d\d-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d$", facts["last"])
    assert not any("watermark" in line for line in lines)
    assert any("watermark" in line for line in at_terminal(warmlog, "topic", "describe", LONG_TOPIC, "--all")[1])


def test_a_default_that_the_operator_set_is_not_called_a_default(warmlog: CommandLine) -> None:
    described = succeeded(warmlog("topic", "describe", LONG_TOPIC)).decode()
    assert "all settings have their defaults" not in described
    assert "retention.ms\t1000000\tbroker\t" in described
    configs = json.loads(succeeded(warmlog("topic", "describe", LONG_TOPIC, "--json")))["configs"]
    assert configs["retention.ms"]["origin"] == "broker"
    assert configs["segment.bytes"]["origin"] == "default"


def test_scripts_get_raw_numbers_in_json_and_units_in_tables(warmlog: CommandLine) -> None:
    found = json.loads(succeeded(warmlog("topic", "describe", LONG_TOPIC, "--json")))
    assert found["records"] == 2353
    assert found["size_bytes"] == sum(each["size_bytes"] for each in found["partitions"]) > 2353
    assert found["last_record_ms"] == found["partitions"][1]["last_record_ms"] > 1_600_000_000_000
    assert found["partitions"][0]["last_record_ms"] == -1
    rows = succeeded(warmlog("topic", "describe", LONG_TOPIC)).decode().splitlines()[3:6]
    last_record = tables.local_time(found["last_record_ms"])
    assert rows[2].split("\t")[-3:] == ["2353", tables.human_size(found["size_bytes"]), last_record]


def test_status_shows_broker_disks_topics_and_rates(warmlog: CommandLine) -> None:
    measuring = warmlog.start("status", "--interval", "1500ms", "--json")
    with blocking.Producer(warmlog.environment["WARMLOG_BROKER"]) as producer:
        while measuring.poll() is None:
            producer.send(LONG_TOPIC, b"x", partition=0).result()
    out, err = measuring.communicate(timeout=180)
    assert measuring.returncode == 0, err
    found = json.loads(out)
    assert found["broker"]["address"] == warmlog.environment["WARMLOG_BROKER"]
    assert (found["broker"]["node_id"], found["broker"]["write_refusal"], found["problems"]) == (1, None, [])
    (disk,) = found["disks"]
    assert disk["reserve_bytes"] == 128 * 1024 * 1024
    assert 0 < disk["free_bytes"] <= disk["total_bytes"]
    topic = next(each for each in found["topics"] if each["name"] == LONG_TOPIC)
    assert topic["records_per_s"] > 0
    assert topic["bytes_per_s"] > 0
    assert "not a duration" in warmlog("status", "--interval", "soon").stderr.decode()


def test_status_fails_when_a_disk_is_below_its_reserve(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", disk_reserve_bytes=2**40) as process:
        done = CommandLine(process.address)("status", "--interval", "0s")
        assert "below its reserve: takes no records" in error_line(done)
        assert b"\t1.0 TiB\t" in done.stdout


def test_status_says_why_a_broker_in_safe_mode_refuses_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = partial(HandshakeResponse, write_refusal="in safe mode")
    with monkeypatch.context() as patch, BrokerThread(tmp_path) as broker:
        patch.setattr(import_module("warmlog_broker.handlers.metadata").m, "HandshakeResponse", said)
        done = CommandLine(broker.address)("status", "--interval", "0s")
        assert "in safe mode" in error_line(done)
        assert b"SAFE MODE: " in done.stdout


def test_a_watched_status_is_repeated_until_ctrl_c_also_while_the_broker_is_away(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        watching = CommandLine(process.address).start("status", "--watch", "50ms", "--interval", "0s")
        out, err = watching.stdout, watching.stderr
        assert out is not None
        assert err is not None
        read_reports(out, 2)
        process.kill()
        lost = [err.readline().decode() for _ in range(2)]
        assert all(process.address in line and "(trying again)" in line for line in lost), lost
        while select.select([out], [], [], 0)[0]:
            os.read(out.fileno(), 65536)  # from before
        process.start()
        read_reports(out, 1)
        watching.send_signal(signal.SIGINT)
        _, last = watching.communicate(timeout=180)
    assert watching.returncode == 0
    assert all("(trying again)" in line for line in last.decode().splitlines())


def read_reports(out: IO[bytes], count: int) -> None:
    """Return once so many reports have begun."""
    shown = b""
    while shown.count(b"broker\t") < count:
        piece = os.read(out.fileno(), 65536)
        assert piece, shown
        shown += piece


def test_a_watched_status_shows_the_groups_with_the_largest_lag(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        warmlog = CommandLine(process.address)
        succeeded(warmlog("topic", "create", "orders", "--partitions", "1"))
        succeeded(warmlog("produce", "orders", given=b"x\n" * 30))
        with blocking.Admin(process.address) as admin:
            for number in range(WATCHED_GROUPS + 2):
                admin.reset_offsets(f"group-{number:02}", number, ["orders-0"], dry_run=False)
        watching = warmlog.start("status", "--watch", "50ms", "--interval", "0s")
        assert watching.stdout is not None
        shown = b""
        while not shown.endswith(b"shows all\n"):
            shown += watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=180)
        assert re.findall(r"^group-\d\d", shown.decode(), re.MULTILINE) == [
            f"group-{number:02}" for number in range(WATCHED_GROUPS)
        ]
        assert "and 2 groups with less lag" in shown.decode()
        everything = json.loads(succeeded(warmlog("status", "--json", "--interval", "0s")))["groups"]
        assert len(everything) == WATCHED_GROUPS + 2
        assert all(group["lag_seconds"] > 0 for group in everything)


def test_a_watched_status_is_one_document_a_time_as_json(warmlog: CommandLine) -> None:
    watching = warmlog.start("status", "--watch", "1", "--interval", "20ms", "--json")
    assert watching.stdout is not None
    documents = [json.loads(watching.stdout.readline()) for _ in range(2)]
    watching.send_signal(signal.SIGINT)
    assert watching.communicate(timeout=180) == (b"", b"")
    assert watching.returncode == 0
    assert all(document["topics"][0]["records_per_s"] is not None for document in documents)


def test_a_watched_status_is_redrawn_at_a_terminal_with_as_many_topics_as_fit(warmlog: CommandLine) -> None:
    names = [f"watched-{number:02}" for number in range(30)]
    succeeded(warmlog("topic", "create", *names, "--partitions", "1"))
    controller, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, TERMINAL_COLUMNS, 0, 0))
    environment = {name: value for name, value in warmlog.environment.items() if name != "COLUMNS"}
    command = [*WARMLOG, "status", "--watch", "100ms", "--interval", "0s"]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as watching:
        os.close(terminal)
        shown = b""
        while shown.count(HOME_AND_CLEAR) < 3:
            shown += os.read(controller, 65536)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(40) == 0
    os.close(controller)
    screen = shown.split(HOME_AND_CLEAR)[1].decode().splitlines()
    assert len(screen) <= 24
    assert re.search(r"and \d\d smaller topics", "\n".join(screen))
    assert re.fullmatch(r"\d\d:\d\d:\d\d, again every 0.1 s until Ctrl-C", screen[-1])
    succeeded(warmlog("topic", "delete", *names, "--yes"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["5"], "only with --watch"),
        (["--watch", "0"], "'0' is not a duration"),
        (["--watch", "soon"], "not a duration"),
    ],
)
def test_an_interval_of_status_is_for_watching_only(warmlog: CommandLine, arguments: list[str], named: str) -> None:
    done = warmlog("status", *arguments)
    assert done.returncode == 2
    assert named in done.stderr.decode()


def test_several_topics_are_created_and_deleted_at_once(warmlog: CommandLine) -> None:
    created = warmlog("topic", "create", "one-of", "two-of", "--partitions", "1")
    succeeded(created)
    assert created.stderr.decode().splitlines() == [
        "warmlog: created topic one-of with 1 partition",
        "warmlog: created topic two-of with 1 partition",
    ]
    assert "one-of" in error_line(warmlog("topic", "create", "one-of"))
    again = warmlog("topic", "create", "one-of", "three-of", "--if-not-exists", "--json")
    assert [each["name"] for each in json.loads(succeeded(again))] == ["one-of", "three-of"]
    assert "nowhere" in error_line(warmlog("topic", "delete", "one-of", "nowhere"))
    assert b"one-of" in succeeded(warmlog("topic", "list")).splitlines()
    refused = warmlog("topic", "delete", "one-of")
    assert (refused.returncode, b"give --yes" in refused.stderr) == (2, True)
    assert b"one-of" in succeeded(warmlog("topic", "list")).splitlines()
    succeeded(warmlog("topic", "delete", "one-of", "two-of", "three-of", "--yes"))
    assert b"-of" not in succeeded(warmlog("topic", "list"))


def test_a_topic_that_does_not_exist_is_told_before_the_question(warmlog: CommandLine) -> None:
    exit_code, lines = at_terminal(warmlog, "topic", "delete", "nowhere")
    assert exit_code == 1
    assert not any("Delete" in line for line in lines)
    assert any("nowhere" in line for line in lines)


def test_a_topic_is_altered_and_grows(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "changing", "--partitions", "1", "--config", "segment.bytes=16MiB"))
    altered = warmlog("topic", "alter", "changing", "--set", "retention.ms=7d", "--unset", "segment.bytes")
    succeeded(altered)
    assert altered.stderr == b"warmlog: altered topic changing: retention.ms=7d, segment.bytes=1GiB\n"
    grown = warmlog("topic", "add-partitions", "changing", "--total", "3")
    succeeded(grown)
    assert grown.stderr == b"warmlog: topic changing has 3 partitions now\n"
    found = json.loads(succeeded(warmlog("topic", "describe", "changing", "--json")))
    assert len(found["partitions"]) == 3
    assert found["configs"]["retention.ms"] == {"value": "604800000", "is_default": False, "origin": "topic"}
    assert found["configs"]["segment.bytes"]["origin"] == "default"
    assert warmlog("topic", "alter", "changing", "--config", "retention.ms=7d").returncode == 0, "as for topic create"
    assert warmlog("topic", "alter", "changing").returncode == 2
    assert "retention.ms" in error_line(warmlog("topic", "alter", "changing", "--set", "retention.msec=1"))


def test_records_are_deleted_by_time_and_in_all_partitions(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "aged", "--partitions", "2"))
    for partition in ("0", "1"):
        succeeded(warmlog("produce", "aged", "--partition", partition, given=b"a\nb\n"))
    untouched = succeeded(warmlog("topic", "delete-records", "aged", "--before", "2013-07-01T00:00", "--yes"))
    assert untouched == b"partition: aged-0\tlow_watermark: 0\npartition: aged-1\tlow_watermark: 0\n"
    one = succeeded(warmlog("topic", "delete-records", "aged", "--before", "2199-01-01", "--partition", "1", "--yes"))
    assert one == b"partition: aged-1\tlow_watermark: 2\n"
    every = succeeded(warmlog("topic", "delete-records", "aged", "--offset", "-1", "--yes"))
    assert warmlog("topic", "delete-records", "aged", "--offset", "-1").returncode == 2
    assert every == b"partition: aged-0\tlow_watermark: 2\npartition: aged-1\tlow_watermark: 2\n"
    assert warmlog("topic", "delete-records", "aged", "--before", "soon").returncode == 2
    assert warmlog("topic", "delete-records", "aged", "--before", "2013-07-01", "--offset", "1").returncode == 2


def test_deleting_records_asks_at_a_terminal(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "precious", "--partitions", "1"))
    succeeded(warmlog("produce", "precious", given=b"a\nb\n"))
    command = ("topic", "delete-records", "precious", "--offset", "-1")
    exit_code, lines = at_terminal(warmlog, *command, typed=b"n\n")
    assert exit_code == 1
    assert any("Delete 2 records of precious in 1 partition?" in line for line in lines)
    assert succeeded(warmlog("offsets", "precious", "--at", "earliest")) == b"precious:0:0\n"
    assert at_terminal(warmlog, *command, typed=b"y\n")[0] == 0
    assert succeeded(warmlog("offsets", "precious", "--at", "earliest")) == b"precious:0:2\n"


def test_the_broker_may_be_named_before_the_command(broker: BrokerProcess) -> None:
    nowhere = CommandLine("127.0.0.1:1")
    assert succeeded(nowhere("topic", "list", "--broker", broker.address))
    assert succeeded(nowhere("--broker", broker.address, "topic", "list"))
    assert succeeded(nowhere("--broker", "127.0.0.1:2", "topic", "list", "--broker", broker.address))
    assert nowhere("--broker", "nohost:notaport", "topic", "list").returncode == 2


def test_version_and_help_are_commands_too(warmlog: CommandLine) -> None:
    told = succeeded(warmlog("--version"))
    assert told.startswith(b"warmlog 0.")
    assert succeeded(warmlog("-V")) == succeeded(warmlog("version")) == told
    assert succeeded(warmlog("help", "topic", "create")) == succeeded(warmlog("topic", "create", "--help"))
    assert succeeded(warmlog("help")) == succeeded(warmlog("--help")) == succeeded(warmlog("-h"))
    assert warmlog("help", "nonsense").returncode == 2


def shown_at_terminal(warmlog: CommandLine, *arguments: str) -> list[str]:
    """The lines of a command at a terminal, without styles."""
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in at_terminal(warmlog, *arguments)[1]]


def test_help_at_a_terminal_says_all_and_has_its_width(warmlog: CommandLine) -> None:
    shown = [line.strip() for line in shown_at_terminal(warmlog, "profile", "--help")]
    assert "[production]" in shown
    assert "WARMLOG_PROFILE=production, takes it. The file is" in shown
    copying = [line.strip() for line in shown_at_terminal(warmlog, "topic", "copy", "--help")]
    assert "does the order within a partition. Offsets are new. A TARGET that does not" in copying


@pytest.mark.parametrize("command", ["consume", "produce", "spark-export", "profile", "completion", "acl list"])
def test_help_fits_80_columns(warmlog: CommandLine, command: str) -> None:
    done = run_forked("warmlog", [*command.split(), "--help"], {**warmlog.environment, "COLUMNS": "80"})
    assert max(map(len, succeeded(done).decode().splitlines())) <= 80


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(warmlog: CommandLine, shell: str) -> None:
    assert f"_WARMLOG_COMPLETE={shell}_complete" in succeeded(warmlog("completion", shell)).decode()


def completed(warmlog: CommandLine, *words: str) -> list[str]:
    """What bash is offered for the last of the words."""
    wanted = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1), "_WARMLOG_COMPLETE": "bash_complete"}
    done = run_forked("warmlog", [], {**warmlog.environment, **wanted})
    assert done.stderr == b""
    return [line.removeprefix("plain,") for line in done.stdout.decode().split()]


def test_commands_and_topics_are_completed(warmlog: CommandLine) -> None:
    assert completed(warmlog, "warmlog", "topic", "add") == ["add-partitions"]
    assert completed(warmlog, "warmlog", "topic", "describe", "ware") == [LONG_TOPIC]
    assert completed(warmlog, "warmlog", "topic", "describe", "none") == []
    address = warmlog.environment["WARMLOG_BROKER"]
    nowhere = CommandLine("127.0.0.1:1")
    assert completed(nowhere, "warmlog", "topic", "describe", "ware") == []
    assert completed(nowhere, "warmlog", "consume", "--broker", address, "ware") == [LONG_TOPIC]


def test_the_profile_names_broker_and_options(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        'broker = "127.0.0.1:1"\nclient_name = "laptop"\n'
        f'[here]\nbroker = "{broker.address}"\nrequest_timeout_ms = 9000\n'
    )
    warmlog = CommandLine("", WARMLOG_CONFIG=str(file))
    assert "127.0.0.1:1:" in error_line(warmlog("topic", "list"))
    assert succeeded(warmlog("--profile", "here", "topic", "list"))
    selected = CommandLine("", WARMLOG_CONFIG=str(file), WARMLOG_PROFILE="here")
    assert succeeded(selected("topic", "list"))
    settings = json.loads(succeeded(selected("profile", "--json")))["settings"]
    assert settings["broker"] == {"value": broker.address, "origin": f"[here] in {file}"}
    assert settings["request_timeout_ms"] == {"value": 9000, "origin": f"[here] in {file}"}
    assert settings["client_name"] == {"value": "laptop", "origin": str(file)}
    assert settings["connect_timeout_ms"] == {"value": 10000, "origin": "default"}
    given = CommandLine("127.0.0.1:2", WARMLOG_CONFIG=str(file), WARMLOG_PROFILE="here")
    assert b"broker\t127.0.0.1:2\tWARMLOG_BROKER" in succeeded(given("profile"))
    assert b"broker\t127.0.0.1:3\t--broker" in succeeded(given("--broker", "127.0.0.1:3", "profile"))


@pytest.mark.parametrize(
    ("content", "profile", "reason"),
    [
        ('brokr = "a:1"\n', "", "'brokr' is not a setting of a profile; did you mean broker?"),
        ("[prod]\nlinger = 5\n", "", "[prod]: 'linger' is not a setting of a profile"),
        ("[prod]\n", "prd", "has no profile 'prd'; did you mean prod?"),
        ("client_name = 5\n", "", "client_name=5"),
        ('broker = "a:b"\n', "", "'a:b' is not HOST:PORT"),
        ("broker\n", "", "cannot read the profile"),
        ("broker = 5\n", "", "broker=5: a str expected"),
        (None, "", "there is no such file"),
    ],
)
def test_a_profile_that_cannot_be_is_misuse(tmp_path: Path, content: str | None, profile: str, reason: str) -> None:
    file = tmp_path / "c.toml"
    if content is not None:
        file.write_text(content)
    done = CommandLine("", WARMLOG_CONFIG=str(file), WARMLOG_PROFILE=profile)("topic", "list")
    assert done.returncode == 2
    assert reason in " ".join(done.stderr.decode().split())
    assert b"Traceback" not in done.stderr


def test_a_place_of_profiles_that_cannot_be_looked_at_has_none(broker: BrokerProcess) -> None:
    assert succeeded(CommandLine(broker.address, XDG_CONFIG_HOME="/" + 300 * "x")("profile"))


def test_a_wrong_choice_is_told_without_the_name_of_an_error(warmlog: CommandLine) -> None:
    text = warmlog("produce", "t", "--acks", "2").stderr.decode()
    assert "'--acks': '2' is not one of" in text


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["topc", "list"], "topic"),
        (["topic", "creat", "t"], "create"),
        (["topic", "list", "--brokr", "a:1"], "--broker"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_one_meant(warmlog: CommandLine, arguments: list[str], meant: str) -> None:
    done = warmlog(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"Did you mean '{meant}'?" in done.stderr.decode()
