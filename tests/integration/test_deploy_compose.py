"""deploy/compose.yaml without a Docker engine: its files fit each other, the image and the dashboard."""

import json
import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

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
        ["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
