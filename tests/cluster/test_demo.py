"""`warmlog cluster demo`, which the page of clusters begins with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from etcd_process import needs_etcd
from warmlog.cli.app import build_program


@needs_etcd
@pytest.mark.slow
def test_the_demo_kills_a_broker_and_finds_all_records_and_leaves_nothing_when_it_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warmlog", "cluster", "demo", "--stay"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as demo:
        assert demo.stdout is not None
        output = ""
        while line := demo.stdout.readline():
            output += line
            if line.startswith("  warmlog consume"):
                demo.terminate()
    assert "acknowledged records are there, each once and in order" in output
    assert list(tmp_path.iterdir()) == []


def test_without_etcd_the_demo_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    done = CliRunner().invoke(build_program(), ["cluster", "demo"], prog_name="warmlog")
    assert done.exit_code == 1
    assert "apt-get install etcd-server" in done.output
