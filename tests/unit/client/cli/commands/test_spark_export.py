"""What `warmlog spark-export` says at its end."""

import json
from pathlib import Path

import pytest

from warmlog.cli.commands.spark_export import _export
from warmlog.spark.export.export import Copied, ExportOptions


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
