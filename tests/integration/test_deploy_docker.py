"""deploy/Dockerfile with a Docker engine: the image is built, and runs as confined as in the compose file."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from broker_process import port_to_keep
from certificates import Certificates
from waiting import wait_until
from warmlog.blocking import Admin, Consumer, Producer

ROOT = Path(__file__).parents[2]
COMPOSED = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["broker"]
USER = 7400
READY_TIMEOUT_S = 60.0

pytestmark = pytest.mark.slow


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True, timeout=60).returncode:
        pytest.skip("no Docker engine responds: `make test-docker` needs one")
    name = f"warmlog-test-{uuid.uuid4().hex}"
    docker("build", "--network", "host", "--file", "deploy/Dockerfile", "--tag", name, ".")
    yield name
    docker("rmi", name)


class Container:
    """A broker in a container with a volume, without rights as in the compose file."""

    def __init__(self, image: str, *options: str, port: int) -> None:
        self.address = f"127.0.0.1:{port_to_keep()}"
        self.volume = docker("volume", "create")
        confined = ["--read-only", *(f"--tmpfs={path}" for path in COMPOSED["tmpfs"])]
        confined += [f"--cap-drop={name}" for name in COMPOSED["cap_drop"]]
        confined += [f"--security-opt={option}" for option in COMPOSED["security_opt"]]
        confined += ["--health-interval=1s", "--stop-timeout=90"]
        published = ["--publish", f"{self.address}:{port}", "--volume", f"{self.volume}:/var/lib/warmlog"]
        self.name = docker("run", "--detach", *confined, *published, *options, image)

    def state(self, what: str) -> str:
        return docker("inspect", "--format", "{{.State." + what + "}}", self.name)

    def wait_until_healthy(self) -> None:
        wait_until(lambda: self.state("Health.Status") == "healthy", READY_TIMEOUT_S)

    def remove(self) -> None:
        docker("rm", "--force", self.name)
        docker("volume", "rm", self.volume)


def read(address: str, **options: object) -> list[bytes | None]:
    with Consumer(address, topics=["flights"], start="earliest", **options) as consumer:  # type: ignore[arg-type]
        return [record.value for record in consumer.records(until="latest")]


def test_a_confined_container_keeps_acknowledged_records_when_it_is_killed_and_stops_in_time(image: str) -> None:
    container = Container(image, "--env=WARMLOG_FLUSH_THREADS=8", port=7400)
    try:
        container.wait_until_healthy()
        with Admin(container.address) as admin, Producer(container.address) as producer:
            admin.create_topic("flights")
            producer.send("flights", b"contained").result()
        docker("kill", "--signal=KILL", container.name)
        docker("start", container.name)
        container.wait_until_healthy()
        assert read(container.address) == [b"contained"]
        docker("stop", container.name)
        assert container.state("ExitCode") == "0"
        assert '"warmlog: stopped"' in docker_log(container.name)
    finally:
        container.remove()


def docker_log(name: str) -> str:
    return subprocess.run(["docker", "logs", name], capture_output=True, text=True, timeout=60, check=True).stderr


def test_a_container_serves_tls_with_mounted_certificates_that_its_user_can_read(image: str, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "issued")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for name, source in (("broker.pem", certificates.broker), ("ca.pem", certificates.ca)):
        (mounted / name).write_bytes(Path(source).read_bytes())
        (mounted / name).chmod(0o400)
        os.chown(mounted / name, USER, USER)
    settings = {
        "LISTEN": "",
        "ALLOW_UNAUTHENTICATED": "false",
        "LISTENERS": "secure=ssl://0.0.0.0:7443",
        "TLS_CERT_FILE": "/tls/broker.pem",
        "TLS_CA_FILE": "/tls/ca.pem",
        "TLS_CLIENT_AUTH": "required",
    }
    options = [f"--env=WARMLOG_{name}={value}" for name, value in settings.items()]
    container = Container(image, f"--volume={mounted}:/tls:ro", *options, port=7443)
    try:
        container.wait_until_healthy()
        tls = {"ssl": True, "ssl_cafile": certificates.ca, "ssl_certfile": certificates.alice}
        with Admin(container.address, **tls) as admin, Producer(container.address, **tls) as producer:  # type: ignore[arg-type]
            admin.create_topic("flights")
            producer.send("flights", b"encrypted").result()
        assert read(container.address, **tls) == [b"encrypted"]
    finally:
        container.remove()
