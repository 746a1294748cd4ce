"""`warmlog log adopt`: where it may put what it takes over, and what it needs to ask a Kafka."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kafka_sample import copy_sample
from warmlog.cli.app import build_program


@pytest.mark.parametrize("inside", [".", "ours", "flights-0/ours", "../link/ours"])
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_data_directory_within_kafkas_is_misuse(tmp_path: Path, inside: str, options: list[str]) -> None:
    kafka = copy_sample(tmp_path / "kafka")
    (tmp_path / "link").symlink_to(kafka)
    before = sorted(kafka.rglob("*"))
    arguments = ["log", "adopt", str(kafka), "--data-dir", str(kafka / inside), *options]
    done = CliRunner().invoke(build_program(), arguments)
    assert done.exit_code == 2
    assert sorted(kafka.rglob("*")) == before


def invoke(tmp_path: Path, *options: str) -> Result:
    kafka = copy_sample(tmp_path / "kafka")
    arguments = ["log", "adopt", str(kafka), "--data-dir", str(tmp_path / "data"), *options]
    return CliRunner().invoke(build_program(), arguments)


def test_without_aiokafka_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka.admin", None)
    monkeypatch.delitem(sys.modules, "warmlog_broker.tools.adoption.kafka_cluster", raising=False)
    done = invoke(tmp_path, "--kafka", "localhost:9092")
    assert done.exit_code == 1
    assert "--kafka needs it: pip install 'aiokafka" in done.stderr


def test_settings_come_from_a_kafka_or_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "configs").write_text("{}")
    done = invoke(tmp_path, "--kafka", "localhost:9092", "--topic-configs", str(tmp_path / "configs"))
    assert done.exit_code == 2
    assert "--kafka or --topic-configs, not both" in done.stderr


def test_an_address_that_is_none_is_misuse(tmp_path: Path) -> None:
    done = invoke(tmp_path, "--kafka", "localhost:port")
    assert done.exit_code == 2
    assert "'localhost:port' is not HOST:PORT" in done.stderr
