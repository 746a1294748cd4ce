"""`warmlog log adopt`: where it may put what it takes over."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kafka_sample import copy_sample
from warmlog.cli.app import build_app


@pytest.mark.parametrize("inside", [".", "ours", "flights-0/ours", "../link/ours"])
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_data_directory_within_kafkas_is_misuse(tmp_path: Path, inside: str, options: list[str]) -> None:
    kafka = copy_sample(tmp_path / "kafka")
    (tmp_path / "link").symlink_to(kafka)
    before = sorted(kafka.rglob("*"))
    arguments = ["log", "adopt", str(kafka), "--data-dir", str(kafka / inside), *options]
    done = CliRunner().invoke(build_app(is_terminal=False), arguments)
    assert done.exit_code == 2
    assert sorted(kafka.rglob("*")) == before
