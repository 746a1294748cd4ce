"""tools/: what `make` sets up, and what it says when it cannot."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def java(home: Path, version: str) -> Path:
    """A directory that looks like a Java of `version`."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return home


def java_home(home: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"JAVA_HOME": str(home)}
    return subprocess.run(
        [ROOT / "tools" / "java-home"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea", "26.0.1"])
def test_java_home_is_taken_when_it_is_new_enough(tmp_path: Path, version: str) -> None:
    home = java(tmp_path / "a java", version)
    found = java_home(home)
    assert (found.returncode, found.stdout) == (0, f"{home}\n")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16"])
def test_an_older_java_home_is_passed_over(tmp_path: Path, version: str) -> None:
    home = java(tmp_path / "old", version)
    assert java_home(home).stdout != f"{home}\n"


def test_what_cannot_be_installed_is_said_in_one_line(tmp_path: Path) -> None:
    only_id = tmp_path / "id"
    only_id.write_text("#!/bin/sh\necho 1000\n")
    only_id.chmod(0o755)
    refused = subprocess.run(
        [ROOT / "tools" / "apt-install", "Spark needs Java 17 or newer", "default-jre-headless"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stderr == (
        "warmlog: Spark needs Java 17 or newer; please install it (Debian: apt-get install default-jre-headless)\n"
    )
