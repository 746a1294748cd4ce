"""The counts and the status line of a long command."""

import pytest

from warmlog.cli.terminal import status
from warmlog.cli.terminal.status import Progress


def test_one_is_singular() -> None:
    progress = Progress(shows_status=False)
    assert progress.counted_records() == "0 records were"
    progress.add(1, 5)
    assert progress.summary().startswith("1 record, 5 B in ")
    assert progress.counted_records() == "1 record was"
    progress.add(1999, 5)
    assert progress.summary().startswith("2,000 records, ")
    assert progress.counted_records() == "2,000 records were"


def test_an_input_of_known_size_has_a_share_and_a_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "INTERVAL_S", 0.0)
    progress = Progress(shows_status=True, total_bytes=400)
    progress.add(10, 90)
    assert ", 25%, 0 s left" in capsys.readouterr().err
    progress.add(20, 380)
    assert ", 100%, 0 s left" in capsys.readouterr().err


def test_an_input_of_unknown_size_has_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(status, "INTERVAL_S", 0.0)
    Progress(shows_status=True).add(10, 90)
    line = capsys.readouterr().err
    assert "10 records" in line
    assert "%" not in line
