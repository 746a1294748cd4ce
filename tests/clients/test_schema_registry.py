"""A schema registry that keeps its schemas in topics, Apicurio, with a Python and a Java client."""

import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker_process import port_to_keep
from clients import fetched
from clients.java import HOME
from clients.java import program as java_program
from clients.programs import run
from clients.served import Served
from waiting import wait_until

CLIENT = "Apicurio Registry 3.0.9"
ARTIFACT = "io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all"
TIMEOUT_S = 120.0
FIELDS = "confluent-kafka[avro,schemaregistry]==2.16.1"


@contextmanager
def registry(served: Served, log: Path) -> Iterator[str]:
    """The address of its API in the form that most clients know."""
    port = port_to_keep()
    environment = {
        "APICURIO_STORAGE_KIND": "kafkasql",
        "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": served.address,
        "QUARKUS_HTTP_PORT": str(port),
        "QUARKUS_HTTP_HOST": "127.0.0.1",
    }
    (program,) = fetched.archive(ARTIFACT).glob("*-runner.jar")
    command = [HOME / "bin" / "java", "-Xmx512m", "-jar", program]
    with log.open("ab") as output, subprocess.Popen(
        command, env=os.environ | environment, stdout=output, stderr=output
    ) as process:  # fmt: skip
        try:
            wait_until(lambda: _is_ready(port), TIMEOUT_S)
            yield f"http://127.0.0.1:{port}/apis/ccompat/v7"
        finally:
            process.kill()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_registers_evolves_and_reads_after_a_restart(served: Served, tmp_path: Path) -> None:
    program = [fetched.python("schemas", FIELDS), fetched.HERE / "python" / "schemas.py", served.address]
    reader = java_program("schemas", "clients-new", "Schemas")
    with registry(served, tmp_path / "log") as url:
        run([*program, url, "orders", "register"])
        run([*program, url, "orders", "evolve"])
    with registry(served, tmp_path / "log") as url:
        said = run([*program, url, "orders", "read"])
        assert said == ['{"item": "tea", "count": 1}', '{"item": "coffee", "count": 2}', "2"]
        schemas = reader.run(served, url, "orders", 2)
    assert [line.startswith("200 ") for line in schemas] == [True, True]
    assert ["count" in line for line in schemas] == [False, True]
