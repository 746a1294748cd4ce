"""deploy/helm without a cluster: what helm renders is confined, and a broker starts with its settings."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_process import BrokerProcess
from warmlog.admin.access.user_changes import deletion
from warmlog.blocking import Admin
from warmlog_broker.config.listeners import SecurityProtocol, Wire, parse_listeners
from warmlog_broker.tools.access import respond
from warmlog_protocol.messages import AlterUsersRequest, ListUsersRequest, ListUsersResponse

CHART = Path(__file__).parents[2] / "deploy" / "helm"
DOCKERFILE = (CHART.parent / "Dockerfile").read_text()
SECURED = {
    "tls": {"secret": "certificate"},
    "firstUser": {"secret": "operator"},
    "settings": {"flush.threads": 8, "retention.ms": "14d", "segment.bytes": 268435456, "write.caching": False},
    "serviceMonitor": {"enabled": True},
    "nodeSelector": {"disk": "fast"},
    "storage": {"size": "1Ti", "className": "fast"},
}

pytestmark = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed: `make test-helm` does")


def helm(command: str, values: dict[str, Any], directory: Path) -> str:
    """Return what a command of helm prints, with these values."""
    given = directory / "values.yaml"
    given.write_text(yaml.safe_dump(values))
    arguments = ["helm", command, *(["--strict"] if command == "lint" else ["logs"]), CHART, "--values", given]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(values: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return the objects by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(helm("template", values, directory))}


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


@pytest.mark.parametrize("values", [{"allowUnauthenticated": True}, SECURED], ids=["open", "secured"])
def test_helm_accepts_the_chart_and_its_pod_is_confined_to_its_volume(tmp_path: Path, values: dict[str, Any]) -> None:
    helm("lint", values, tmp_path)
    pod = rendered(values, tmp_path)["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == 7400
    assert "--uid 7400" in DOCKERFILE
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        confined = container["securityContext"]
        assert confined["readOnlyRootFilesystem"]
        assert not confined["allowPrivilegeEscalation"]
        assert confined["capabilities"]["drop"] == ["ALL"]
        assert any(each["mountPath"] == "/var/lib/warmlog" for each in container["volumeMounts"])
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert mounted <= {"data", *(each["name"] for each in pod["volumes"])}
    assert "VOLUME /var/lib/warmlog" in DOCKERFILE


def test_ports_and_labels_fit_each_other_and_the_image(tmp_path: Path) -> None:
    found = rendered(SECURED, tmp_path)
    template = found["StatefulSet"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert f"EXPOSE {ports['warmlog']} {ports['metrics']}\n" in DOCKERFILE
    assert {each["targetPort"] for each in found["Service"]["spec"]["ports"]} == ports.keys()
    assert found["Service"]["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert {probe["httpGet"]["port"] for name, probe in container.items() if name.endswith("Probe")} == {"metrics"}
    monitored = found["ServiceMonitor"]["spec"]
    assert monitored["selector"]["matchLabels"].items() <= found["Service"]["metadata"]["labels"].items()
    assert found["Service"]["metadata"]["labels"][monitored["jobLabel"]] == "warmlog"
    assert monitored["endpoints"][0]["port"] in {each["name"] for each in found["Service"]["spec"]["ports"]}
    assert template["spec"]["nodeSelector"] == {"disk": "fast"}
    (volume,) = found["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert volume["spec"]["storageClassName"] == "fast"


@pytest.mark.parametrize(
    ("values", "protocol"),
    [
        ({"allowUnauthenticated": True}, "plaintext"),
        ({"tls": {"secret": "certificate", "clientCertificates": True}}, "ssl"),
        ({"firstUser": SECURED["firstUser"]}, "sasl_plaintext"),
        (SECURED, "sasl_ssl"),
    ],
)
def test_its_settings_are_those_of_a_broker(tmp_path: Path, values: dict[str, Any], protocol: str) -> None:
    (container,) = rendered(values, tmp_path)["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    shown = subprocess.run(
        [sys.executable, "-m", "warmlog", "config", "show", "--offline", "--changed", "--json"],
        env={"PATH": os.environ["PATH"], **environment(container)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    effective = {name: each["value"] for name, each in json.loads(shown.stdout).items()}
    assert effective["listeners"] == f"main={protocol}://0.0.0.0:7400"
    assert ("tls.cert.file" in effective) == protocol.endswith("ssl")
    if values is SECURED:
        assert effective["flush.threads"] == "8"
        assert effective["retention.ms"] == str(14 * 24 * 3600 * 1000)
        assert effective["segment.bytes"] == "268435456"


def test_the_console_is_off_by_default_and_finds_the_broker(tmp_path: Path) -> None:
    assert "Deployment" not in rendered(SECURED, tmp_path)
    origin = "https://logs.example.org"
    values = {**SECURED, "console": {"enabled": True, "origin": origin, "options": ["--read-only"]}}
    helm("lint", values, tmp_path)
    objects = list(yaml.safe_load_all(helm("template", values, tmp_path)))
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["--origin", origin, "--read-only"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    variables = environment(container)
    assert variables["WARMLOG_SSL"] == "true"
    services = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Service"}
    assert variables["WARMLOG_BROKER"].partition(":")[0] in services
    (port,) = services[f"{deployment['metadata']['name']}"]["ports"]
    assert {each["name"] for each in container["ports"]} == {port["targetPort"]}


def test_the_first_user_is_added_once_can_log_in_and_does_not_return_when_it_is_deleted(tmp_path: Path) -> None:
    pod = rendered({"firstUser": SECURED["firstUser"]}, tmp_path)["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["initContainers"]
    secret = tmp_path / "first-user"
    secret.mkdir()
    (secret / "username").write_text("operator")
    (secret / "password").write_text("correct horse battery")
    shell, option, script = container["command"]
    script = script.replace("/first-user", str(secret)).replace("/var/lib/warmlog", str(tmp_path / "data"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def start() -> None:
        subprocess.run([shell, option, script], env={**os.environ, "PATH": path}, check=True, timeout=60)

    start()
    start()
    with (
        BrokerProcess(tmp_path / "data", listeners="main=sasl_plaintext://127.0.0.1:0") as broker,
        Admin(broker.address, username="operator", password="correct horse battery") as admin,
    ):
        assert [user.name for user in admin.list_users()] == ["operator"]
        admin.create_user("alice", "another battery")
    respond(tmp_path / "data", AlterUsersRequest([deletion("operator")]))
    start()
    users = respond(tmp_path / "data", ListUsersRequest())
    assert isinstance(users, ListUsersResponse)
    assert [user.name for user in users.users] == ["alice"]


def test_clients_of_kafka_have_a_port_that_is_secured_as_the_other_one(tmp_path: Path) -> None:
    found = rendered({**SECURED, "kafka": {"enabled": True}}, tmp_path)
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    settings = environment(container)
    _, listener = parse_listeners(settings["WARMLOG_LISTENERS"], settings["WARMLOG_ADVERTISED_LISTENERS"])
    assert (listener.wire, listener.protocol, listener.port) == (Wire.KAFKA, SecurityProtocol.SASL_SSL, 9092)
    assert listener.advertised == ("logs.default", 9092)
    assert {"name": "kafka", "containerPort": 9092} in container["ports"]
    assert {"name": "kafka", "port": 9092, "targetPort": "kafka"} in found["Service"]["spec"]["ports"]
