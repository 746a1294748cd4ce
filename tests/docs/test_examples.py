"""Every program in examples/ runs, twice in a row."""

import subprocess
import sys
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from docs.blocks import ROOT

LAST_LINES = {
    "ten_lines": ["1 records", "2 records"],
    "etl_resume": [
        f"{ {f'customer {number}': euros for number in range(3)} } again: nothing is counted twice"
        for euros in (1000, 2000)
    ],
    "exactly_once_sqlite": ["1000 visits", "2000 visits"],
    "dataframe_in": ["Name: people, dtype: int64"] * 2,
    "threads": ["200 of 200 clicks are in the log"] * 2,
}


def test_every_example_is_here() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(LAST_LINES)


@pytest.mark.parametrize("name", LAST_LINES)
def test_an_example_runs_twice(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "work"
    directory.mkdir()
    command = [sys.executable, ROOT / "examples" / f"{name}.py"]
    with BrokerProcess(tmp_path / "data") as broker:
        for last_line in LAST_LINES[name]:
            done = subprocess.run(
                [*command, broker.address], cwd=directory, capture_output=True, text=True, timeout=180, check=False
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout.splitlines()[-1] == last_line
