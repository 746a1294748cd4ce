"""Single commands: the words of `acl`, what is held open, the end of `spark-export`, a `status` without groups."""

import json
from pathlib import Path
from typing import Any

import pytest

from warmlog import ApiError, BrokerInfo, CoordinatorNotAvailable, TransactionDescription, UnsupportedVersion
from warmlog.cli.commands.access.acl import OPERATIONS
from warmlog.cli.commands.spark_export import _export
from warmlog.cli.commands.status import BrokerStatus, _with_groups
from warmlog.cli.commands.topic.open_transactions import Held, held_text
from warmlog.spark.export.export import Copied, ExportOptions
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
    _export(None, None, options, None, as_json=True)
    assert json.loads(capfdbinary.readouterr().out)["lost_offsets"] == lost_offsets
    _export(None, None, options, None, as_json=False)
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
    shown = await _with_groups(admin, found, None)
    assert (shown.groups, shown.problems) == ([], problems)
