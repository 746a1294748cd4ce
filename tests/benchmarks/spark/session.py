"""A session for measuring, and the processor time of the processes below it."""

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from process_tree import Processes, processes_of, used_between

MASTER = "local[2]"


class CpuSeconds(NamedTuple):
    """Processor time of Spark's JVM, and of its Python workers and planners."""

    jvm: float
    python: float


def spark_session(scratch: Path, jars: Path | None = None) -> Any:
    """A session with two cores, whose files go to `scratch`; with the `jars` of that directory, too."""
    from pyspark.sql import SparkSession

    # Spark takes the first python3 on the PATH otherwise, and finds no data sources by a path with a space in it.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYSPARK_PYTHON"] = Path(sys.executable).name
    return (
        SparkSession.builder.master(MASTER)
        .appName("warmlog benchmark")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "3g")
        .config("spark.driver.extraClassPath", f"{jars}/*" if jars else "")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.daemon.module", "benchmarks.spark.waiting_daemon")  # for `cpu_since`
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={scratch}")
        .getOrCreate()
    )


def spark_processes() -> Processes:
    """Spark's java and all below it, its Python workers and their daemons, with their processor time so far."""
    return processes_of(_java_pid())


def cpu_since(before: Processes) -> CpuSeconds:
    """What they have used since; a planner that has ended meanwhile is not counted, as nobody has waited for it."""
    return CpuSeconds(*used_between(before, spark_processes(), _java_pid()))


def _java_pid() -> int:
    from pyspark import SparkContext

    return int(SparkContext._gateway.proc.pid)
