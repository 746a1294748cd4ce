"""Single commands: the words of `acl`, a rebalance, what is held open, the end of `spark-export`, no groups."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

import warmlog
from warmlog import ApiError, BrokerInfo, CoordinatorNotAvailable, TransactionDescription, UnsupportedVersion
from warmlog.cli.app import build_program
from warmlog.cli.commands import consume
from warmlog.cli.commands.access.acl import OPERATIONS
from warmlog.cli.commands.spark_export import _export, spark_export
from warmlog.cli.commands.status import BrokerStatus, _add_groups
from warmlog.cli.commands.topic.open_transactions import Held, held_text
from warmlog.cli.terminal.exits import describe
from warmlog.cli.terminal.formats import write_raw
from warmlog.cli.terminal.status import Progress
from warmlog.records.batch import Batch
from warmlog.spark.export.export import Copied, ExportOptions
from warmlog_protocol.batch import encode_batch, read_batch
from warmlog_protocol.messages import Operation


def test_each_operation_has_its_word() -> None:
    assert set(OPERATIONS) == {operation.name.lower() for operation in Operation}


def test_a_transactional_id_with_control_characters_cannot_write_to_the_terminal() -> None:
    transaction = TransactionDescription("a\n\x1b[2J", "ongoing", 1, 0, 60_000, -1, [], [], None)
    assert held_text(Held("t", 0, 7, [transaction])).startswith(r"t-0 from offset 7 on: a\n\x1b[2J (ongoing, open for ")


@pytest.mark.parametrize("lost_offsets", [0, 1_500])
def test_the_summary_says_how_many_offsets_were_gone(
    lost_offsets: int, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    rounds = [Copied(5, 100, 1, lost_offsets), Copied(0, 0, 0, 0)]
    monkeypatch.setattr("warmlog.spark.export.export.export_available", lambda *_: iter(rounds))
    options = ExportOptions(("b:1",), "t", Path("/out"))
    with spark_export.make_context("spark-export", ["t", "/out", "--json"]):
        _export(None, None, options, None)
    assert json.loads(capfdbinary.readouterr().out)["lost_offsets"] == lost_offsets
    with spark_export.make_context("spark-export", ["t", "/out"]):
        _export(None, None, options, None)
    said = capfdbinary.readouterr().out.decode()
    assert said.startswith("t to /out: 1 file, 5 records")
    assert said.endswith("; 1,500 lost offsets were skipped\n") == (lost_offsets > 0)


class Refusing:
    """An Admin whose broker refuses to list groups."""

    def __init__(self, error: ApiError) -> None:
        self._error = error

    async def list_groups(self) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "problems"),
    [
        (UnsupportedVersion("0.1.0 has no groups"), []),
        (CoordinatorNotAvailable("__groups-3 is offline"), ["groups: __groups-3 is offline"]),
    ],
    ids=["0.1.0", "offline"],
)
async def test_a_broker_without_groups_to_show_is_shown_nevertheless(error: ApiError, problems: list[str]) -> None:
    found = BrokerStatus(BrokerInfo(1, "b:1", "0.1.0", "c", ""), [], 0, [], [])
    admin: Any = Refusing(error)
    await _add_groups(admin, found, None)
    assert (found.groups, found.problems) == ([], problems)


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        (
            "backup create /tmp",
            "Missing option '--data-dir': it takes no verb, as in `warmlog backup DIR --data-dir DIR`.",
        ),
        (
            "backup create /tmp/b --data-dir /tmp",
            "(/tmp/b): it takes no verb, as in `warmlog backup DIR --data-dir DIR`.",
        ),
        ("topic ls", "No such command 'ls': type `warmlog topic list`."),
        ("topic show orders", "type `warmlog topic describe`."),
        ("topic rm orders", "type `warmlog topic delete`."),
        ("acl create", "type `warmlog acl add`."),
        ("user show", "type `warmlog user list`."),
        ("topics", "type `warmlog topic list`."),
        ("ls", "type `warmlog topic list` or `warmlog group list`."),
        ("describe orders", "type `warmlog topic describe TOPIC` or `warmlog group describe GROUP`."),
        ("stream ls", "type `warmlog topic list`."),
        ("topic produce orders", "type `warmlog produce TOPIC`."),
        ("broker info", "type `warmlog status`."),
        ("topic describe", "Missing argument 'TOPIC': `warmlog topic list` shows them all."),
        ("group describe", "Missing argument 'GROUP': `warmlog group list` shows them all."),
        ("consume -t orders", "the name is an argument, as in `warmlog consume TOPIC...`."),
        ("group describe -g etl", "the name is an argument, as in `warmlog group describe GROUP`."),
        ("topic list --bootstrap-server h:1", "give --broker."),
        ("--bootstrap-server h:1 topic list", "give --broker."),
        ("topic list --profile prod", "it goes before the command, as in `warmlog --profile … topic list`."),
        ("consume orders --username anna", "it goes before the command, as in `warmlog --username … consume`."),
        ("consume orders --from-beginning", "give --from earliest."),
        ("topic create orders --replicas 3", "give --replication-factor."),
        ("topic --list", "give warmlog topic or group, and a verb."),
        ("group reset etl --to-earliest", "give --to."),
    ],
)
def test_what_others_are_called_elsewhere_is_answered_with_what_to_type_here(typed: str, advice: str) -> None:
    done = CliRunner().invoke(build_program(), typed.split(), prog_name="warmlog")
    assert done.exit_code == 2
    assert " ".join(done.output.split()).endswith(advice), done.output


@pytest.mark.parametrize("words", [["topic", "list", "--broker", ""], ["--broker", "", "topic", "list"]])
def test_an_empty_address_is_not_the_default(words: list[str]) -> None:
    done = CliRunner().invoke(build_program(), words, prog_name="warmlog")
    assert done.exit_code == 2
    assert "no broker address given" in done.output


def test_an_election_that_may_lose_records_needs_a_terminal_or_yes() -> None:
    done = CliRunner().invoke(build_program(), ["cluster", "elect", "orders", "--unclean", "1"], prog_name="warmlog")
    assert done.exit_code == 2
    assert "there is no terminal at which this could be confirmed: give --yes" in done.output


def test_the_lists_of_commands_are_wrapped_and_not_cut() -> None:
    for typed in ([], ["topic"], ["group"], ["log"]):
        shown = CliRunner().invoke(build_program(), [*typed, "--help"], terminal_width=80).output
        assert "..." not in shown.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            warmlog.MessageTooLarge("2 MB, at most max.message.bytes=1048588"),
            "NAME --set max.message.bytes=8MiB",
        ),
        (warmlog.InvalidConfig("`username` and `password` belong together"), "--username and --password-file belong"),
        (
            warmlog.InvalidConfig("ssl_cafile is given without TLS: add ssl=True"),
            "given without TLS: add --ssl",
        ),
    ],
)
def test_errors_of_the_client_name_options_and_remedies_of_the_command_line(error: Exception, told: str) -> None:
    assert told in describe(error)


def test_a_transactional_id_that_does_not_exist_is_not_answered_with_the_commands_for_topics() -> None:
    error = warmlog.TransactionalIdNotFound("transactional id 'pays' does not exist, or has expired")
    assert describe(error) == str(error)


class Rebalancing:
    """A consumer that delivers a batch, gives up its partition in the next read, and delivers nothing for a while."""

    def __init__(self, written: consume.Written) -> None:
        self._written, self._reads = written, 0
        self.committed: list[dict[tuple[str, int], int]] = []

    def batches(self, **_: Any) -> "Rebalancing":
        return self

    def __aiter__(self) -> "Rebalancing":
        return self

    async def __anext__(self) -> Any:
        self._reads += 1
        if self._reads == 2:
            await self._written.commit()
            await asyncio.sleep(60)
        if self._reads == 4:
            raise StopAsyncIteration
        return Batch("t", 0, read_batch(encode_batch([b"v"], timestamps_ms=0)), high_watermark=1)

    async def commit(self, offsets: dict[tuple[str, int], int]) -> None:
        self.committed.append(offsets)


async def test_a_member_goes_on_after_a_rebalance_that_has_committed_what_it_had_written(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(consume, "COMMIT_INTERVAL_S", 0.05)
    written = consume.Written()
    consumer = written.consumer = cast("Any", Rebalancing(written))
    wanted = consume.Range(cast("Any", None), None, None, None)
    await consume._print(consumer, "t", wanted, write_raw, Progress(shows_status=False), written)
    assert capfdbinary.readouterr().out == b"v\nv\n"
    await written.commit()
    assert consumer.committed == [{("t", 0): 1}, {("t", 0): 1}]
