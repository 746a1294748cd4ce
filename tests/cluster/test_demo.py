"""`warmlog cluster demo`, which the page of clusters begins with."""

import pytest
from click.testing import CliRunner

from etcd_process import needs_etcd
from warmlog.cli.app import build_program


@needs_etcd
@pytest.mark.slow
def test_the_demo_kills_a_broker_and_finds_all_records() -> None:
    done = CliRunner().invoke(build_program(), ["cluster", "demo"], prog_name="warmlog")
    assert done.exit_code == 0, done.output
    assert "acknowledged records are there, each once and in order" in done.output


def test_without_etcd_the_demo_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    done = CliRunner().invoke(build_program(), ["cluster", "demo"], prog_name="warmlog")
    assert done.exit_code == 1
    assert "apt-get install etcd-server" in done.output
