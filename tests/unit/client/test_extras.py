"""Hints name packages that can be installed: those of the project file."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from warmlog.extras import install_hint

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_hint_installs_what_the_extra_names(extra: str) -> None:
    program, command, *packages = shlex.split(install_hint(extra))
    assert (program, command) == ("pip", "install")
    assert [parts(package) for package in sorted(packages)] == [parts(package) for package in sorted(EXTRAS[extra])]


def test_without_metadata_a_hint_names_the_clone() -> None:
    assert install_hint("nothing") == "pip install '.[nothing]' in a clone of warmlog"


def test_without_pyarrow_arrow_reader_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyarrow'] = None; from warmlog.ranges.arrow_reader import arrow_reader"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "Arrow needs numpy and pyarrow: pip install" in done.stderr.splitlines()[-1]


def test_nothing_says_to_install_warmlog_from_an_index_that_does_not_have_it() -> None:
    roots = ("broker", "client", "protocol", "deploy", "docs", "examples", "README.md")
    for path in (found for root in roots for found in (ROOT / root, *(ROOT / root).rglob("*"))):
        if path.is_file() and path.suffix not in (".pyc", ".png"):
            assert not re.search(r"pip install '?warmlog", path.read_text()), path


def parts(requirement: str) -> list[str]:
    """The package and its bounds, in any order."""
    return sorted(re.split(r"(?=[<>])|,", requirement))
