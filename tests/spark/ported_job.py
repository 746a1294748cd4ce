"""Jobs run by spark-submit: one as people have it for Kafka, and others."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark

JOB = Path(__file__).with_name("kafka_job.py")
TIMEOUT_S = 600
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def submit(source: str, servers: str, directory: Path, **settings: str) -> dict[str, Any]:
    """What the job printed."""
    directory.mkdir()
    found = run_job(JOB, source, servers, directory, directory=directory, **settings)
    assert isinstance(found, dict)
    return found


def run_job(job: Path, *arguments: object, directory: Path, **settings: str) -> Any:
    """What a job printed last, which is JSON."""
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2,4]"]
    for name, value in {**SETTINGS, **settings}.items():
        command += ["--conf", f"{name}={value}"]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": Path(sys.executable).name,
    }
    done = subprocess.run(
        [*command, str(job), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        env=environment,
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
