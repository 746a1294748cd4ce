"""A session for measuring, and the processor time of the processes below it."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from processor_time import ProcessorTime, processor_time

MASTER = "local[2]"


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
        .config("spark.python.daemon.module", "benchmarks.spark.waiting_daemon")  # for `cpu_seconds`
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={scratch}")
        .getOrCreate()
    )


class CpuSeconds(NamedTuple):
    """Processor time so far of Spark's JVM and of its Python workers; those that have ended count too."""

    jvm: float
    python: float


def cpu_seconds() -> CpuSeconds:
    """Of Spark's java, and of whatever it has started."""
    from pyspark import SparkContext

    children: dict[int, list[int]] = {}
    times: dict[int, ProcessorTime] = {}
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        with suppress(OSError):  # it has ended
            times[pid] = processor_time(pid)
            children.setdefault(times[pid].parent_pid, []).append(pid)
    jvm = python = 0.0
    pending = [(SparkContext._gateway.proc.pid, False)]
    while pending:
        pid, is_below_java = pending.pop()
        time = times[pid]
        is_java = time.name == "java"
        if is_java:
            jvm += time.own_s
            python += time.ended_s  # java waits for daemons that end
        elif is_below_java:
            python += time.own_s + time.ended_s  # workers end, and their daemon has waited for them
        pending += [(child, is_below_java or is_java) for child in children.get(pid, [])]
    return CpuSeconds(jvm, python)
