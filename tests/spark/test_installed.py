"""The format where warmlog is installed from its wheel, in an environment of its own: found, and over Spark Connect."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from spark.topics import Record, Topics

pytestmark = pytest.mark.slow

TOP = Path(__file__).parents[2]
SCRIPT = """
import os
import sys
from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # as the page says
builder = SparkSession.builder
builder = builder.remote("local[2]") if sys.argv[2] == "connect" else builder.master("local[2]")
spark = (
    builder.config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
frame = spark.read.format("warmlog").option("bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2]).load()
import warmlog
print("counted", frame.count(), "with", warmlog.__file__)
spark.stop()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the built wheel. PySpark and the like come from this one, warmlog does not."""
    directory = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=TOP, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    venv.create(directory / "venv", symlinks=True, with_pip=False)
    found = directory / "venv" / "bin" / "python"
    base = str(directory / "venv")
    packages = Path(sysconfig.get_path("purelib", vars={"base": base, "platbase": base}))
    # Paths in a .pth file are searched, but .pth files in them are not read: the warmlog under test stays out.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    return found


@pytest.mark.parametrize("how", ["classic", "connect", "unactivated"])
def test_the_format_is_found_in_an_environment_with_only_the_wheel(
    python: Path, broker: BrokerProcess, topics: Topics, tmp_path: Path, how: str
) -> None:
    if how == "connect":
        pytest.importorskip("grpc", reason="Spark Connect needs more: pip install 'pyspark[connect]'")
    topics.create(how)
    topics.fill(how, 0, [Record(None, b"v")] * 1_234)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYSPARK"))}
    environment |= {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": "python",
        "VIRTUAL_ENV": str(python.parent.parent),
    }
    if how == "unactivated":  # `venv/bin/python job.py`: PATH has another python3
        environment["PATH"] = os.environ["PATH"]
        del environment["PYSPARK_PYTHON"], environment["VIRTUAL_ENV"]
    done = subprocess.run(
        [str(python), "-c", SCRIPT, broker.address, how],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert f"counted 1234 with {python.parent.parent}" in done.stdout
