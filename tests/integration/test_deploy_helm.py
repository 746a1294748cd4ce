"""deploy/helm without a cluster: what helm renders is confined, and a broker starts with its settings."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_process import BrokerProcess
from etcd_process import EtcdProcess, needs_etcd
from warmlog.admin.access.user_changes import deletion
from warmlog.blocking import Admin, Producer
from warmlog_broker.config.listeners import SecurityProtocol, Wire, parse_listeners
from warmlog_broker.config.sources import load_settings
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

CLUSTER = {
    **SECURED,
    "replicas": 3,
    "cluster": {"etcd": "etcd-0:2379,etcd-1:2379", "secret": "brokers"},
    "kafka": {"enabled": True},
}

pytestmark = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed: `make test-helm` does")


def helm(command: str, values: dict[str, Any], directory: Path) -> str:
    """Return what a command of helm prints, with these values."""
    done = called(command, values, directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def called(command: str, values: dict[str, Any], directory: Path) -> "subprocess.CompletedProcess[str]":
    given = directory / "values.yaml"
    given.write_text(yaml.safe_dump(values))
    arguments = ["helm", command, *(["--strict"] if command == "lint" else ["logs"]), CHART, "--values", given]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=180, check=False)


def rendered(values: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return the objects by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(helm("template", values, directory))}


def environment(container: dict[str, Any], index: int = 0, **labels: str) -> dict[str, str]:
    """Return the variables of the pod with this index and these further labels, as Kubernetes sets them."""
    fields = {
        "metadata.name": f"logs-{index}",
        "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
        **{f"metadata.labels['topology.kubernetes.io/{name}']": value for name, value in labels.items()},
    }
    found: dict[str, str] = {}
    for each in container["env"]:
        if "valueFrom" in each:
            found[each["name"]] = fields.get(each["valueFrom"]["fieldRef"]["fieldPath"], "")
        else:
            found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], each["value"])
    return found


@pytest.mark.parametrize(
    "values", [{"allowUnauthenticated": True}, SECURED, CLUSTER], ids=["open", "secured", "cluster"]
)
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
        timeout=180,
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
        subprocess.run([shell, option, script], env={**os.environ, "PATH": path}, check=True, timeout=180)

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


def test_several_brokers_need_an_etcd_and_a_secret(tmp_path: Path) -> None:
    assert "cluster.etcd" in called("template", {**SECURED, "replicas": 3}, tmp_path).stderr
    without = {**CLUSTER, "cluster": {"etcd": "etcd:2379"}}
    assert "cluster.secret" in called("template", without, tmp_path).stderr


def test_each_broker_of_a_cluster_has_settings_of_its_own_and_one_at_a_time_is_away(tmp_path: Path) -> None:
    found = rendered(CLUSTER, tmp_path)
    stateful = found["StatefulSet"]["spec"]
    pod = stateful["template"]["spec"]
    (container,) = pod["containers"]
    assert (stateful["replicas"], stateful["podManagementPolicy"]) == (3, "Parallel")
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz/in-sync"
    assert found["Service"]["spec"]["publishNotReadyAddresses"]
    budget = found["PodDisruptionBudget"]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": stateful["selector"]}
    spread = {each["topologyKey"]: each["whenUnsatisfiable"] for each in pod["topologySpreadConstraints"]}
    assert spread == {"kubernetes.io/hostname": "DoNotSchedule", "topology.kubernetes.io/zone": "ScheduleAnyway"}
    image = dict(re.findall(r"^ +(WARMLOG_\w+)=(\S+)", DOCKERFILE, re.MULTILINE))
    for index, zone in enumerate(("a", "b", "")):
        variables = image | environment(container, index, **({"zone": zone} if zone else {}))
        config = load_settings({"data.dir": str(tmp_path)}, environment=variables)
        assert (config.node_id, config.rack, config.cluster_id) == (index, zone, "default-logs")
        name = f"logs-{index}.logs.default.svc"
        advertised = {each.name: each.advertised for each in config.all_listeners}
        assert advertised == {"main": (name, 7400), "kafka": (name, 9092)}
        assert config.peer_listener.name == "main"
        (mounted,) = (each for each in container["volumeMounts"] if each["name"] == "cluster")
        assert config.cluster_secret_file == f"{mounted['mountPath']}/secret"
        assert (config.tls_ca_file, config.tls_client_auth) == ("/tls/ca.crt", "none")


@needs_etcd
def test_three_pods_that_start_at_once_are_one_cluster_in_which_the_first_user_can_log_in(tmp_path: Path) -> None:
    secret = tmp_path / "first-user"
    secret.mkdir()
    (secret / "username").write_text("operator")
    (secret / "password").write_text("correct horse battery")
    (tmp_path / "secret").write_text("of the brokers\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with ExitStack() as held:
        etcd = held.enter_context(EtcdProcess(tmp_path / "etcd"))
        values = {
            "replicas": 3,
            "cluster": {"etcd": ",".join(etcd.addresses), "secret": "brokers"},
            "firstUser": SECURED["firstUser"],
        }
        pod = rendered(values, tmp_path)["StatefulSet"]["spec"]["template"]["spec"]
        (first,), (container,) = pod["initContainers"], pod["containers"]

        def first_start(index: int) -> "subprocess.Popen[bytes]":
            shell, option, script = first["command"]
            script = script.replace("/first-user", str(secret)).replace("/tmp/known", str(tmp_path / f"known-{index}"))
            return subprocess.Popen(
                [shell, option, script], env={**os.environ, "PATH": path, **environment(first, index)}
            )

        at_once = [first_start(index) for index in range(3)]
        failed = [index for index, process in enumerate(at_once) if process.wait(60) != 0]
        assert [first_start(index).wait(60) for index in failed] == [0] * len(failed), "Kubernetes repeats what failed"
        brokers = []
        for index in range(3):
            variables = environment(container, index)
            settings = {
                name.removeprefix("WARMLOG_").lower(): variables[name]
                for name in ("WARMLOG_CLUSTER_ETCD", "WARMLOG_CLUSTER_ID", "WARMLOG_NODE_ID")
            }
            broker = BrokerProcess(tmp_path / f"data-{index}", cluster_secret_file=tmp_path / "secret", **settings)
            broker.settings["listeners"] = f"main=sasl_plaintext://{broker.address}"
            brokers.append(held.enter_context(broker))
        login = {"username": "operator", "password": "correct horse battery"}
        with Admin(brokers[0].address, **login) as admin, Producer(brokers[1].address, **login) as producer:
            admin.create_topic("orders", partitions=1, replication_factor=3)
            assert producer.send("orders", b"1").result().offset == 0
            assert [user.name for user in admin.list_users()] == ["operator"]
