"""deploy/prometheus and deploy/grafana: valid, and their queries have data of a Prometheus that scrapes a broker."""

import http.client
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from broker_process import BrokerProcess, port_to_keep
from certificates import Certificates
from waiting import wait_until
from warmlog.blocking import Producer
from warmlog_protocol.errors import ApiError
from warmlog_protocol.messages import GroupHeartbeatRequest, OffsetCommitPartition, OffsetCommitRequest
from wire_client import WireClient, batch_of

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus/warmlog.rules.yml"
RULES_TEST = DEPLOY / "prometheus/warmlog.rules.test.yml"
CONFIG = DEPLOY / "prometheus/prometheus.yml"
DASHBOARD = DEPLOY / "grafana/warmlog.json"
METRICS_PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
SHIPPED_TARGET = "127.0.0.1:9464"
PATIENCE_S = 60
ONLY_STARTING = {"warmlog_recovery_partitions", "warmlog_recovery_partitions_done"}
"""A broker has these until it serves, so a query of them is rightly empty."""
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus and promtool are not installed: `make test-prometheus` installs them",
)


def alerts() -> dict[str, str]:
    """The name and first line of the expression of each alert."""
    return dict(re.findall(r"- alert: (\w+)\n\s+expr: (.+)", RULES.read_text()))


def panel_queries() -> list[tuple[str, str]]:
    """The title of the panel, and the expression, of each query of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:warmlog|process)_\w+|\bup\b", re.sub(r"\{[^}]*\}", "", expression)))


def test_every_metric_in_a_panel_or_an_alert_is_documented() -> None:
    documented = set(re.findall(r"^\| `(warmlog_\w+)` \|", METRICS_PAGE.read_text(), re.MULTILINE))
    asked = metrics_in(RULES.read_text()).union(*(metrics_in(query) for _, query in panel_queries()))
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked if name.startswith("warmlog_")}
    assert names <= documented
    assert len(names) > 25


def test_the_dashboard_takes_its_data_source_from_a_variable() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert [each["name"] for each in dashboard["templating"]["list"]] == ["datasource", "instance"]
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    sources = {panel["datasource"]["uid"] for panel in panels}
    assert sources | {target["datasource"]["uid"] for panel in panels for target in panel["targets"]} == {
        "${datasource}"
    }
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert all("$instance" in query for _, query in panel_queries())


def test_each_alert_has_a_test() -> None:
    assert set(re.findall(r'alertname="(\w+)"', RULES_TEST.read_text())) == set(alerts())


@needs_prometheus
@pytest.mark.parametrize(
    "arguments", [["check", "config", CONFIG], ["check", "rules", RULES], ["test", "rules", RULES_TEST]]
)
def test_promtool_accepts(arguments: list[str | Path]) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A Prometheus with the configuration of deploy/prometheus, which scrapes one broker each second."""

    def __init__(self, directory: Path, target: str) -> None:
        config = CONFIG.read_text().replace("15s", "1s").replace("warmlog.rules.yml", str(RULES))
        assert SHIPPED_TARGET in config
        (directory / "prometheus.yml").write_text(config.replace(SHIPPED_TARGET, target))
        self._port = port_to_keep()
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--log.level=error",
            ]
        )

    def wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while self._get("/-/ready")[0] != 200:
            assert time.monotonic() < deadline_s
            assert self._process.poll() is None
            time.sleep(0.05)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of a response of the HTTP API."""
        status, body = self._get(f"/api/v1/{path}?{urlencode(parameters)}")
        assert status == 200, body
        response = json.loads(body)
        assert response["status"] == "success", response
        return response["data"]

    def _get(self, path: str) -> tuple[int, bytes]:
        """The status and body of a page; 503 while it does not accept connections yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except ConnectionRefusedError:
            return 503, b""
        finally:
            connection.close()

    def query(self, expression: str) -> list[Any]:
        """The result of an expression, in which the variables of Grafana are replaced."""
        expression = expression.replace("$__rate_interval", "30s").replace("$instance", ".*")
        return list(self.ask("query", query=expression)["result"])


@pytest.fixture
def admin_port() -> int:
    return port_to_keep()


@pytest.fixture
def broker(tmp_path: Path, admin_port: int) -> Iterator[BrokerProcess]:
    listeners = f"plain=plaintext://127.0.0.1:{port_to_keep()},tls=ssl://127.0.0.1:{port_to_keep()}"
    certificate = Certificates(tmp_path / "certificates").broker
    with BrokerProcess(
        tmp_path / "data", admin_listen=f"127.0.0.1:{admin_port}", listeners=listeners, tls_cert_file=certificate
    ) as process:
        yield process


@pytest.fixture
def prometheus(tmp_path: Path, admin_port: int, broker: BrokerProcess) -> Iterator[Prometheus]:
    running = Prometheus(tmp_path, f"127.0.0.1:{admin_port}")
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.close()


class Traffic:
    """A producer, one with transactions, a reader, a member of a group that commits, and a client that errs."""

    def __init__(self, client: WireClient, producer: Producer) -> None:
        self._client = client
        self._producer = producer
        self._offset = 0
        self._topic_id = client.create_topic("orders")
        client.create_topic("payments")
        client.call(GroupHeartbeatRequest("etl", member_id="m", member_epoch=0, topics=["orders"]))

    def flow(self) -> None:
        """Do each once; the group stays two records behind."""
        self._client.produce("orders", batch_of([b"x" * 100] * 10))
        self._client.fetch("orders", self._offset)
        self._offset += 10
        offset = OffsetCommitPartition(self._topic_id, "orders", 0, self._offset - 2)
        self._client.call(OffsetCommitRequest("jobs", [offset]))
        with self._producer.transaction():
            self._producer.send("payments", b"x")
        with suppress(ApiError):
            self._client.produce("missing", batch_of([b"x"]))


def wait_for_data(prometheus: Prometheus, traffic: Traffic, queries: set[str]) -> None:
    """Return when each query has had a result, with traffic all the time."""
    deadline_s = time.monotonic() + PATIENCE_S
    left = set(queries)
    while left:
        assert time.monotonic() < deadline_s, f"no data for {left}"
        traffic.flow()
        left = {query for query in left if not prometheus.query(query)}
        time.sleep(0.1)


@needs_prometheus
def test_queries_of_panels_and_alerts_have_data_of_prometheus(broker: BrokerProcess, prometheus: Prometheus) -> None:
    with WireClient(broker.address) as client, Producer(broker.address, transactional_id="pay") as producer:
        traffic = Traffic(client, producer)
        queries = {query for _, query in panel_queries() if "warmlog_cluster_" not in query}  # it is alone
        starting = {query for query in queries if metrics_in(query) <= ONLY_STARTING}
        metrics = metrics_in(re.sub("(?m)^.*summary.*|^.*description.*|^#.*", "", RULES.read_text()))
        assert len(starting) == 1
        metrics = {name for name in metrics if not name.startswith("warmlog_cluster_")}
        wait_for_data(prometheus, traffic, queries - starting | metrics)
        assert all(prometheus.query(query) == [] for query in starting)
        (lag,) = prometheus.query("warmlog_group_lag_records")
        assert (lag["metric"]["group"], lag["metric"]["topic"]) == ("jobs", "orders")
        (group,) = prometheus.ask("rules")["groups"]
        assert {rule["name"]: rule["health"] for rule in group["rules"]} == dict.fromkeys(alerts(), "ok")
    assert broker.terminate() == 0
    wait_until(lambda: bool(prometheus.query('ALERTS{alertname="WarmlogDown"}')), PATIENCE_S)
