"""A type checker finds wrong uses of the clients, and nothing in the examples."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.blocks import ROOT

WRONG_USES = Path(__file__).parent / "wrong_uses.py"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LEAST = 30
FOUND = re.compile(r"^(?P<file>[^:]+\.py):(?P<line>\d+): error: (?P<text>.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def found() -> dict[Path, dict[int, str]]:
    """The errors that mypy finds, by file and line."""
    # packages and modules of the project file are those of `make check`: files are given here.
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-warn-unused-ignores",
        *map(str, EXAMPLES),
        str(WRONG_USES),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    errors: dict[Path, dict[int, str]] = {}
    for match in FOUND.finditer(done.stdout):
        errors.setdefault(ROOT / match["file"], {})[int(match["line"])] = match["text"]
    assert errors, done.stdout + done.stderr
    return errors


def test_each_wrong_use_is_found(found: dict[Path, dict[int, str]]) -> None:
    lines = WRONG_USES.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    assert len(marked) >= LEAST
    assert set(found[WRONG_USES]) == marked, found[WRONG_USES]


def test_nothing_is_found_in_the_examples_or_elsewhere(found: dict[Path, dict[int, str]]) -> None:
    assert set(found) == {WRONG_USES}, found
