"""Options that let Spark's JVM start quickly, and the classes that it loads, in a file that each start maps.

A session takes 3 s of processor time to start with both, 7 without the file and 11 without either. The first session of
the tests here writes the file, for its version of PySpark and Java, when it ends; those of later runs map it.
"""

import fcntl
import hashlib
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
"""Nothing in the tests runs long enough for the JVM's second compiler and its parallel collector to pay."""
DIRECTORY = Path(__file__).parents[2] / "build" / "spark-classes"


def archive_path() -> Path | None:
    """Return the file for this PySpark and this Java; None without a JAVA_HOME."""
    release = Path(os.environ.get("JAVA_HOME", "")) / "release"
    if "JAVA_HOME" not in os.environ or not release.exists():
        return None
    made_for = f"{version('pyspark')} {release.resolve()} {release.read_text()}"
    return DIRECTORY / f"{hashlib.sha256(made_for.encode()).hexdigest()[:16]}.jsa"


def set_options() -> None:
    """Let every Spark that this process and its children start take these options."""
    archive = archive_path()
    mapped = f' -Xshare:auto "-XX:SharedArchiveFile={archive}"' if archive is not None and archive.exists() else ""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", OPTIONS + mapped)


class ClassArchive:
    """The archive, if it is still to be written by a session."""

    def __init__(self) -> None:
        self._path = archive_path()
        self._is_missing = self._path is not None and not self._path.exists() and self._is_first()

    @property
    def java_options(self) -> str:
        """What the session's JVM must be started with."""
        if not self._is_missing:
            return ""
        return f'"-XX:ArchiveClassesAtExit={self._written}"'

    def stop(self, session: Any) -> None:
        """Stop the session; wait for its JVM if that has the archive to write."""
        process = session.sparkContext._gateway.proc
        session.stop()
        if self._is_missing:
            process.stdin.close()
            process.wait()
            if self._written.exists():
                self._written.rename(self._path or self._written)

    def _is_first(self) -> bool:
        """Whether this process may write here and no other is about to; until this one ends, none is."""
        try:
            DIRECTORY.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(DIRECTORY / "lock", os.O_CREAT | os.O_RDWR)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    @property
    def _written(self) -> Path:
        return DIRECTORY / f"{os.getpid()}.jsa"
