"""deploy/compose.yaml without a Docker engine: its files fit each other, the image and the dashboard."""

import json
import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from warmlog_broker.config.sources import load_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def mounts(service: str) -> dict[PurePosixPath, Path]:
    """The files and directories of the tree that a service sees, by their path in its container."""
    found = {}
    for volume in SERVICES[service]["volumes"]:
        source, target, *options = volume.split(":")
        if source in COMPOSE["volumes"]:
            continue
        assert options == ["ro"]
        found[PurePosixPath(target)] = DEPLOY / source
    return found


def read(service: str, path: str) -> Any:
    """The content of a YAML file, as a service finds it."""
    return yaml.safe_load(mounts(service)[PurePosixPath(path)].read_text())


def test_all_that_is_mounted_exists_and_all_ports_are_published_on_loopback() -> None:
    for name, service in SERVICES.items():
        assert all(path.exists() for path in mounts(name).values())
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_all_services_start_again_with_the_machine() -> None:
    assert {service["restart"] for service in SERVICES.values()} == {"unless-stopped"}


def test_prometheus_scrapes_the_admin_port_of_the_image() -> None:
    (job,) = read("prometheus", "/etc/prometheus/prometheus.yml")["scrape_configs"]
    (port,) = re.findall(r"WARMLOG_ADMIN_LISTEN=0\.0\.0\.0:(\d+)", DOCKERFILE)
    assert job["static_configs"] == [{"targets": [f"broker:{port}"]}]
    shipped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert job["job_name"] == shipped["scrape_configs"][0]["job_name"]


def test_grafana_has_the_dashboard_and_the_prometheus_of_the_same_file() -> None:
    (source,) = read("grafana", "/etc/grafana/provisioning/datasources/warmlog.yml")["datasources"]
    assert source["url"] == "http://prometheus:" + SERVICES["prometheus"]["ports"][0].rpartition(":")[2]
    assert source["isDefault"]
    (provider,) = read("grafana", "/etc/grafana/provisioning/dashboards/warmlog.yml")["providers"]
    directory = PurePosixPath(provider["options"]["path"])
    home = PurePosixPath(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == directory
    dashboard = json.loads((mounts("grafana")[directory] / home.name).read_text())
    (variable,) = [each for each in dashboard["templating"]["list"] if each["name"] == "datasource"]
    assert variable["query"] == source["type"]


def test_the_broker_is_confined_and_keeps_its_data_in_the_volume_of_the_image() -> None:
    broker = SERVICES["broker"]
    assert (DEPLOY / broker["build"]["context"] / broker["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    (volume,) = re.findall(r"^VOLUME (.+)$", DOCKERFILE, re.MULTILINE)
    assert broker["volumes"] == [f"data:{volume}"]
    assert broker["read_only"]
    assert broker["cap_drop"] == ["ALL"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: `make test-prometheus` does")
def test_promtool_accepts_the_configuration_of_prometheus(tmp_path: Path) -> None:
    for target, source in mounts("prometheus").items():
        shutil.copy(source, tmp_path / target.name)
    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr


CLUSTER = yaml.safe_load((DEPLOY / "compose-cluster.yaml").read_text())


@pytest.mark.parametrize("node", [1, 2, 3])
def test_each_broker_of_the_cluster_has_settings_that_it_can_start_with(node: int, tmp_path: Path) -> None:
    broker = CLUSTER["services"][f"broker{node}"]
    image = dict(re.findall(r"^ +(WARMLOG_\w+)=(\S+)", DOCKERFILE, re.MULTILINE))
    environment = image | {name: str(value) for name, value in broker["environment"].items()}
    config = load_settings({"data.dir": str(tmp_path)}, environment=environment)
    assert (config.node_id, config.peer_listener.name) == (node, "brokers")
    assert config.peer_listener.advertised == (f"broker{node}", config.peer_listener.port)
    clients = next(each for each in config.all_listeners if each.name == "clients")
    assert broker["ports"] == [f"127.0.0.1:{(clients.advertised or ('', 0))[1]}:{clients.port}"]
    assert config.cluster_etcd == ",".join(f"etcd{each}:2379" for each in (1, 2, 3))
    assert config.cluster_secret_file == f"/run/secrets/{broker['secrets'][0]}"
    assert broker["volumes"] == [f"broker{node}:/var/lib/warmlog"]


def test_the_etcd_of_the_cluster_has_three_members_that_know_each_other() -> None:
    for node in (1, 2, 3):
        settings = CLUSTER["services"][f"etcd{node}"]["environment"]
        peers = dict(each.split("=", 1) for each in settings["ETCD_INITIAL_CLUSTER"].split(","))
        assert peers[settings["ETCD_NAME"]] == settings["ETCD_INITIAL_ADVERTISE_PEER_URLS"]
        assert len(peers) == 3
    assert CLUSTER["services"]["init"]["environment"]["WARMLOG_CLUSTER_ID"] == "compose"
