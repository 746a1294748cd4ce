"""What the two programs of the demo that run in Spark share: the session."""

import os
import sys
from pathlib import Path
from typing import Any

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Quick to start: Java's second compiler and its larger collectors pay off after minutes, not in one query."""


def start_session(scratch: Path) -> Any:
    """Return a Spark session whose files are in `scratch`."""
    from pyspark.sql import SparkSession

    # By its name: Spark finds no Python data sources if the path of Python has a space in it.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = Path(sys.executable).name
    builder = SparkSession.builder.master("local[2]").appName("warmlog demo")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", str(scratch / "local"))
    session = builder.config("spark.sql.warehouse.dir", str(scratch / "warehouse")).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
