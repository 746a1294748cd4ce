"""A session for measuring, and the processor time of the processes below it."""

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

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
    times: dict[int, tuple[str, float, float]] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        name = text[text.index("(") + 1 : text.rindex(")")]
        fields = [*map(int, text.rpartition(")")[2].split()[1:15])]
        pid = int(path.parent.name)
        children.setdefault(fields[0], []).append(pid)
        # Own time, and that of children that were waited for: workers end, and their daemon has waited for them.
        times[pid] = name, sum(fields[10:12]) / ticks, sum(fields[12:14]) / ticks
    jvm = python = 0.0
    pending = [(SparkContext._gateway.proc.pid, False)]
    while pending:
        pid, is_below_java = pending.pop()
        name, own_s, ended_s = times[pid]
        is_java = name == "java"
        jvm += own_s if is_java else 0
        python += ended_s if is_java else (own_s + ended_s if is_below_java else 0)  # java waits for daemons that end
        pending += [(child, is_below_java or is_java) for child in children.get(pid, [])]
    return CpuSeconds(jvm, python)
