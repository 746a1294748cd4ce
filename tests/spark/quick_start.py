"""How Spark starts quickly: options for its JVM, the classes that this loads in a file that each start maps, and forks.

Its Python processes are forks of one that has imported what they need (see `preloading/sitecustomize`). A session takes
3 s of processor time to start with options and file, 7 without the file and 11 without either. `make test` writes the
file by this program, once for each version of PySpark and of Java: a short session that does a bit of everything.
"""

import hashlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from forked import server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
"""Nothing in the tests runs long enough for the JVM's second compiler and its parallel collector to pay."""
DIRECTORY = Path(__file__).parents[2] / "build" / "spark-classes"
ARCHIVE_S = 120.0
"""How long a JVM may take to write its classes at its end: 2 s, unless the machine is very busy."""


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
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", OPTIONS)  # of the JVM that finds out how to start the session's
    os.environ.setdefault("SPARK_SUBMIT_OPTS", OPTIONS + mapped)


def forked_python() -> dict[str, str]:
    """Return the environment in which the Python processes that Spark starts are forks."""
    paths = [str(Path(__file__).parent / "preloading"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "SPARK_FORK_SERVER": server("pyspark").path}


def start_session(directory: Path, java_options: str = "") -> "SparkSession":
    """Return the session of tests; what it writes on its own is in `directory`."""
    from pyspark.sql import SparkSession

    # By its name: Spark finds no Python data sources where the path of the Python has a space in it.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYSPARK_PYTHON"] = Path(sys.executable).name
    os.environ.update(forked_python())
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory))
        .config("spark.driver.extraJavaOptions", f"{java_options} -Dderby.system.home={directory}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


def write_archive(path: Path) -> None:
    """Write the classes that reading, writing and streaming load to `path`, which appears when it is complete.

    A JVM that writes such a file at its end may not come to it for minutes, if ever: seen twice with Java 17, at loads
    of 26 and 40.
    """
    from warmlog.blocking import Admin
    from warmlog.testing import embedded

    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(f".{os.getpid()}")
    with embedded() as broker, TemporaryDirectory() as name, Admin(broker.address) as admin:
        for topic in ("numbers", "copied"):
            admin.create_topic(topic, partitions=2)
        session = start_session(Path(name), f'"-XX:ArchiveClassesAtExit={written}"')
        broker_option = {"bootstrap.servers": broker.address}
        numbers = session.range(10).selectExpr("cast(id as string) as key", "cast(id as string) as value")
        numbers.write.format("warmlog").options(topic="numbers", **broker_option).mode("append").save()
        options = {"subscribe": "numbers", "startingOffsets": "earliest", **broker_option}
        session.read.format("warmlog").options(**options).load().groupBy("partition").count().collect()
        stream = session.readStream.format("warmlog").options(**options).load().select("key", "value")
        sinks = {"warmlog": {"topic": "copied", **broker_option}, "parquet": {"path": f"{name}/data"}}
        for sink, wanted in sinks.items():
            writer = stream.mapInArrow(lambda batches: batches, stream.schema).writeStream.format(sink)
            checkpoint = {"checkpointLocation": f"{name}/{sink}"}
            writer.options(**wanted, **checkpoint).trigger(availableNow=True).start().awaitTermination()
        session.read.parquet(f"{name}/data").orderBy("key").collect()
        java = session.sparkContext._gateway.proc  # type: ignore[union-attr]
        session.stop()
        java.stdin.close()
        try:
            java.wait(timeout=ARCHIVE_S)
        except subprocess.TimeoutExpired:
            java.kill()
            java.wait()
            print(f"warmlog: Java hung as it wrote {written}; Spark starts without it", file=sys.stderr)
            written.unlink(missing_ok=True)
            return
    written.rename(path)


if __name__ == "__main__":
    set_options()
    archive = archive_path()
    if archive is not None and not archive.exists():
        write_archive(archive)
