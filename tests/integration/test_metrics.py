"""Metrics, health and the log of real brokers."""

import http.client
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import warmlog
import warmlog.blocking
from broker_process import BrokerFailed, BrokerProcess, port_to_keep
from integration.command_line import CommandLine, succeeded
from waiting import wait_until
from warmlog.blocking import Admin, Consumer, Producer
from warmlog_broker.tools.access import respond
from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.errors import AuthorizationFailed, TopicAuthorizationFailed, UnknownTopicOrPartition
from wire_client import WireClient, batch_of

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
VALUES = [b"x" * 100] * 10


def ask(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class Metrics(dict[tuple[str, tuple[tuple[str, str], ...]], float]):
    """Values by name and labels."""

    def __init__(self, port: int) -> None:
        status, text = ask(port, "/metrics")
        assert status == 200
        self.families = {family.name: family.type for family in text_string_to_metric_families(text)}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self[sample.name, tuple(sorted(sample.labels.items()))] = sample.value

    def of(self, name: str, **labels: str) -> float:
        return self[name, tuple(sorted(labels.items()))]


@pytest.fixture
def port() -> int:
    return port_to_keep()


@pytest.fixture
def broker(tmp_path: Path, port: int) -> Iterator[BrokerProcess]:
    settings = {"admin_listen": f"127.0.0.1:{port}", "metrics_max_topics": 2}
    with BrokerProcess(tmp_path / "data", **settings) as process:
        yield process


def test_what_is_produced_and_fetched_is_counted(broker: BrokerProcess, port: int, tmp_path: Path) -> None:
    with WireClient(broker.address) as client:
        client.create_topic("a", partitions=3)
        client.produce("a", batch_of(VALUES))
        client.fetch("a", 0)
        metrics = Metrics(port)
    assert metrics.of("warmlog_topic_appended_records_total", topic="a") == 10
    assert metrics.of("warmlog_topic_appended_batches_total", topic="a") == 1
    size_bytes = len(batch_of(VALUES))
    assert metrics.of("warmlog_topic_appended_bytes_total", topic="a") == size_bytes
    assert metrics.of("warmlog_topic_fetched_bytes_total", topic="a") == size_bytes
    assert metrics.of("warmlog_topic_size_bytes", topic="a") == size_bytes
    assert metrics.of("warmlog_topic_records", topic="a") == 10
    assert metrics.of("warmlog_topic_partitions", topic="a") == 3
    assert metrics.of("warmlog_partitions", state="online") == 3
    assert metrics.of("warmlog_connections") == 1
    assert metrics.of("warmlog_request_seconds_count", protocol="warmlog", api="Produce") == 1
    assert metrics.of("warmlog_request_seconds_bucket", protocol="warmlog", api="Produce", le="+Inf") == 1
    directory = str(tmp_path / "data")
    assert metrics.of("warmlog_flush_seconds_count", directory=directory) >= 1
    assert metrics.of("warmlog_directory_up", directory=directory) == 1
    assert metrics.of("warmlog_directory_free_bytes", directory=directory) > 0


def test_errors_are_counted_by_api_and_kind(broker: BrokerProcess, port: int) -> None:
    with WireClient(broker.address) as client, pytest.raises(UnknownTopicOrPartition):
        client.produce("missing", batch_of(VALUES))
    assert (
        Metrics(port).of(
            "warmlog_request_errors_total", protocol="warmlog", api="Produce", error="UnknownTopicOrPartition"
        )
        == 1
    )


def test_what_is_refused_is_counted_by_api_and_reason(tmp_path: Path, port: int) -> None:
    rule = m.AclBinding("User:*", m.Operation.WRITE, m.ResourceType.TOPIC, "secret", is_allowed=False)
    respond(tmp_path / "data", m.CreateAclsRequest([rule]))
    settings = {"authorization": "acl", "admin_listen": f"127.0.0.1:{port}"}
    with BrokerProcess(tmp_path / "data", **settings) as broker, WireClient(broker.address) as client:
        for topic in ("a", "b", "secret"):
            with pytest.raises(TopicAuthorizationFailed):
                client.produce(topic, batch_of(VALUES))
        metrics = Metrics(port)
    assert metrics.of("warmlog_requests_denied_total", protocol="warmlog", api="Produce", reason="no rule") == 2
    assert metrics.of("warmlog_requests_denied_total", protocol="warmlog", api="Produce", reason="denied") == 1
    assert (
        metrics.of("warmlog_request_errors_total", protocol="warmlog", api="Produce", error="TopicAuthorizationFailed")
        == 3
    )


def test_what_exceeds_a_quota_is_counted_by_user_and_limit(broker: BrokerProcess, port: int) -> None:
    changed = m.ClientQuota(
        "ANONYMOUS", None, [m.QuotaLimit("producer_byte_rate", 100), m.QuotaLimit("request_rate", 1000)]
    )
    with WireClient(broker.address) as client:
        client.create_topic("t")
        client.call(m.AlterClientQuotasRequest([changed]))
        batch = batch_of([bytes(100)])
        for _ in range(2):
            client.produce("t", batch)
        metrics = Metrics(port)
    labels = {"user": "ANONYMOUS", "quota": "producer_byte_rate"}
    assert metrics.of("warmlog_throttled_requests_total", **labels) == 2
    assert metrics.of("warmlog_throttle_seconds_total", **labels) == pytest.approx(len(batch) / 100 * 2 - 1, rel=0.5)
    with pytest.raises(KeyError):
        metrics.of("warmlog_throttled_requests_total", user="ANONYMOUS", quota="request_rate")


def test_what_retention_deletes_and_compaction_has_to_read_is_counted(tmp_path: Path, port: int) -> None:
    settings = {"admin_listen": f"127.0.0.1:{port}"}
    often = {"log_retention_check_interval_ms": 50, "log_cleaner_backoff_ms": 50}
    with BrokerProcess(tmp_path / "data", **settings, **often) as broker, WireClient(broker.address) as client:
        small = {"segment.bytes": "2048"}
        client.create_topic("short", **small, **{"retention.bytes": "1024"})
        client.create_topic("state", **small, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"})
        batch = encode_batch(VALUES, keys=[b"k"] * 10, timestamps_ms=time.time_ns() // 1_000_000)
        for topic in ("short", "state"):
            for _ in range(3):
                client.produce(topic, batch)
        wait_until(lambda: Metrics(port).of("warmlog_deleted_segments_total") == 2)
        wait_until(lambda: Metrics(port).of("warmlog_compaction_backlog_bytes") == 2 * len(batch))
        assert Metrics(port).of("warmlog_deleted_bytes_total") == 2 * len(batch)


def test_requests_in_flight_are_counted(broker: BrokerProcess, port: int) -> None:
    with WireClient(broker.address) as client:
        client.create_topic("a")
        assert Metrics(port).of("warmlog_requests_in_flight") == 0
        client.send(m.FetchRequest(300_000, 1, 1 << 20, [m.FetchPartition("a", 0, 0, 1 << 20)]))
        wait_until(lambda: Metrics(port).of("warmlog_requests_in_flight") == 1)
        assert Metrics(port).of("warmlog_waiting_fetches") == 1


def test_topics_beyond_the_limit_are_added_up(broker: BrokerProcess, port: int) -> None:
    with WireClient(broker.address) as client:
        for name in "dcba":
            client.create_topic(name)
            client.produce(name, batch_of(VALUES))
        metrics = Metrics(port)
        assert metrics.of("warmlog_topic_appended_records_total", topic="b") == 10
        assert metrics.of("warmlog_topic_appended_records_total", topic="~other") == 20
        assert metrics.of("warmlog_topic_partitions", topic="~other") == 2
        client.call(m.DeleteTopicsRequest(["a"]))
        assert Metrics(port).of("warmlog_topic_appended_records_total", topic="c") == 10
        assert Metrics(port).of("warmlog_topic_appended_records_total", topic="~other") == 20
        client.create_topic("a")
        with pytest.raises(KeyError):
            Metrics(port).of("warmlog_topic_appended_records_total", topic="a")


def test_the_counters_of_other_topics_count_what_these_get_and_never_fall(broker: BrokerProcess, port: int) -> None:
    def others() -> float:
        return Metrics(port).of("warmlog_topic_appended_records_total", topic="~other")

    with WireClient(broker.address) as client:
        for name in "bcde":
            client.create_topic(name)
            client.produce(name, batch_of(VALUES))
        assert others() == 20
        client.call(m.DeleteTopicsRequest(["e"]))
        assert others() == 20
        client.create_topic("a")  # c is one of the others from now on
        assert others() == 20
        client.produce("c", batch_of(VALUES))
        client.produce("d", batch_of(VALUES))
        assert others() == 40


def test_a_broker_without_the_setting_has_no_such_port(tmp_path: Path, port: int) -> None:
    with BrokerProcess(tmp_path / "data"), pytest.raises(ConnectionRefusedError):
        ask(port, "/metrics")


def test_the_ready_line_says_where_metrics_are(broker: BrokerProcess, port: int) -> None:
    assert f"metrics at http://127.0.0.1:{port}/metrics" in broker.output
    assert ask(port, "/healthz/ready") == (200, "ready\n")


def test_an_address_in_use_ends_the_start(tmp_path: Path, broker: BrokerProcess, port: int) -> None:
    with pytest.raises(BrokerFailed, match=f"cannot listen at 127.0.0.1:{port}"):
        BrokerProcess(tmp_path / "other", admin_listen=f"127.0.0.1:{port}").start()
    with pytest.raises(BrokerFailed, match=r"admin\.listen: 'nonsense' is not allowed"):
        BrokerProcess(tmp_path / "other", admin_listen="nonsense").start()


def test_two_ports_that_turn_out_to_be_one_end_the_start(tmp_path: Path, port: int) -> None:
    same = f"127.0.0.1:{port}"
    for settings in (
        {"admin_listen": f"localhost:{port}", "listeners": f"a=plaintext://{same}"},
        {"listeners": f"a=plaintext://{same},b=plaintext://localhost:{port}"},
    ):
        with pytest.raises(BrokerFailed, match=f"cannot listen at .*:{port}: Address already in use") as failure:
            BrokerProcess(tmp_path / "data", **settings).start()
        assert "Traceback" not in failure.value.output


def test_every_metric_is_documented_and_the_other_way_round(broker: BrokerProcess, port: int) -> None:
    rows = re.findall(r"^\| `(warmlog_\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    documented = {name.removesuffix("_total"): kind for name, kind in rows}
    only_starting = {name for name in documented if name.startswith(("warmlog_recovery_", "warmlog_cluster_"))}
    found = {name: kind for name, kind in Metrics(port).families.items() if name.startswith("warmlog_")}
    assert found.keys() | only_starting == documented.keys()
    assert {name: documented[name] for name in found} == found


def commit(client: WireClient, group: str, topic: str, topic_id: bytes, offset: int, partition: int = 0) -> None:
    response = client.call(m.OffsetCommitRequest(group, [m.OffsetCommitPartition(topic_id, topic, partition, offset)]))
    assert isinstance(response, m.OffsetCommitResponse)
    assert [each.error_code for each in response.partitions] == [0]


def test_the_lag_of_groups_is_counted_in_records_and_in_seconds(broker: BrokerProcess, port: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    with WireClient(broker.address) as client:
        topic_id = client.create_topic("orders", partitions=2)
        client.produce("orders", batch_of(VALUES, timestamp_ms=now_ms - 600_000))
        client.produce("orders", batch_of(VALUES, timestamp_ms=now_ms - 60_000))
        client.produce("orders", batch_of(VALUES, timestamp_ms=now_ms - 300_000), partition=1)
        commit(client, "etl", "orders", topic_id, 12)
        commit(client, "etl", "orders", topic_id, 5, partition=1)
        metrics = Metrics(port)
        labels = {"group": "etl", "topic": "orders"}
        assert metrics.of("warmlog_group_lag_records", **labels) == 8 + 5
        assert 300 <= metrics.of("warmlog_group_lag_seconds", **labels) < 330
        commit(client, "etl", "orders", topic_id, 10, partition=1)
        assert 60 <= Metrics(port).of("warmlog_group_lag_seconds", **labels) < 90
        commit(client, "etl", "orders", topic_id, 20)
        metrics = Metrics(port)
        assert metrics.of("warmlog_group_lag_records", **labels) == 0
        assert metrics.of("warmlog_group_lag_seconds", **labels) == 0
        assert metrics.of("warmlog_groups", state="empty") == 1
        assert metrics.of("warmlog_request_seconds_count", protocol="warmlog", api="OffsetCommit") == 4
        client.call(m.DeleteTopicsRequest(["orders"]))
        assert ("warmlog_group_lag_records", tuple(labels.items())) not in Metrics(port)


def test_what_holds_no_records_after_the_committed_offset_is_no_lag(broker: BrokerProcess, port: int) -> None:
    def lags() -> set[tuple[int, float]]:
        """By the metrics, by `group_lags`, and by a consumer that begins at the committed offset."""
        scraped = Metrics(port)
        seconds = scraped.of("warmlog_group_lag_seconds", **labels)
        (admins,) = admin.group_lags(["etl"])["etl"].values()
        with Consumer(broker.address, **options) as reader:
            (readers,) = reader.lag().values()
        assert admins.seconds is not None
        assert readers.seconds is not None
        return {
            (int(scraped.of("warmlog_group_lag_records", **labels)), seconds // 60),
            (admins.records or 0, admins.seconds // 60),
            (readers.records, readers.seconds // 60),
        }

    def commit_last(count: int) -> None:
        with Consumer(broker.address, **options) as consumer:
            *_, last = islice(consumer.records(), count)
            consumer.commit(last)

    options: dict[str, Any] = {"partitions": ["orders-0"], "group": "etl", "commit": "manual"}
    options["isolation"] = "read_committed"
    labels = {"group": "etl", "topic": "orders"}
    minute_ago_ms = time.time_ns() // 1_000_000 - 60_000
    with Admin(broker.address) as admin, Producer(broker.address, transactional_id="etl") as producer:
        admin.create_topic("orders")
        with producer.transaction():
            producer.send("orders", b"x")
        commit_last(1)
        assert lags() == {(0, 0)}, "a marker"
        with suppress(ZeroDivisionError), producer.transaction():
            producer.send_many("orders", [b"aborted"] * 5)
            producer.flush()
            raise ZeroDivisionError
        assert lags() == {(0, 0)}, "an aborted transaction"
        with producer.transaction():
            producer.send("orders", b"y", timestamp_ms=minute_ago_ms).result()
            (open_lag,) = admin.group_lags(["etl"])["etl"].values()
            assert (open_lag.records, Metrics(port).of("warmlog_group_lag_records", **labels)) == (1, 1)
        assert lags() == {(2, 1)}, "a record and its marker"
        with suppress(ZeroDivisionError), producer.transaction():
            producer.send("orders", b"aborted").result()
            assert Metrics(port).of("warmlog_group_lag_records", **labels) == 3
            commit_last(1)
            assert Metrics(port).of("warmlog_group_lag_records", **labels) == 1
            raise ZeroDivisionError
        assert lags() == {(0, 0)}, "what was open when it was looked up, and was aborted since"
        producer_end = admin.look_up_offsets("orders", "latest")[0].offset
        with producer.transaction():
            producer.send("orders", b"z")
        admin.delete_records({("orders", 0): producer_end + 1})
        assert lags() == {(0, 0)}, "deleted records, up to a marker"


def test_members_and_targets_of_groups_are_counted(broker: BrokerProcess, port: int) -> None:
    with WireClient(broker.address) as client:
        client.create_topic("orders", partitions=2)
        joined = m.GroupHeartbeatRequest("etl", member_id="m", member_epoch=0, topics=["orders"])
        client.call(joined)
        metrics = Metrics(port)
        assert metrics.of("warmlog_group_members", group="etl") == 1
        wait_until(lambda: Metrics(port).of("warmlog_group_target_assignments_total") >= 1)


def test_open_transactions_are_counted_with_the_age_of_the_oldest(broker: BrokerProcess, port: int) -> None:
    with Admin(broker.address) as admin, Producer(broker.address, transactional_id="etl") as producer:
        admin.create_topic("orders")
        assert Metrics(port).of("warmlog_transactional_ids", state="empty") == 1
        with producer.transaction():
            producer.send("orders", b"x").result()
            metrics = Metrics(port)
            assert metrics.of("warmlog_transactional_ids", state="ongoing") == 1
            assert 0 < metrics.of("warmlog_transaction_oldest_seconds") < 600
        wait_until(lambda: Metrics(port).of("warmlog_transactional_ids", state="empty") == 1)
        assert Metrics(port).of("warmlog_transaction_oldest_seconds") == 0
        with suppress(ZeroDivisionError), producer.transaction():
            producer.send("orders", b"aborted").result()
            raise ZeroDivisionError
        ends = {end: Metrics(port).of("warmlog_transactions_ended_total", end=end) for end in ("committed", "aborted")}
        assert ends == {"committed": 1, "aborted": 1}


def test_groups_beyond_the_limit_are_added_up(tmp_path: Path, port: int) -> None:
    settings = {"admin_listen": f"127.0.0.1:{port}", "metrics_max_groups": 2}
    with BrokerProcess(tmp_path / "data", **settings) as broker, WireClient(broker.address) as client:
        topic_id = client.create_topic("orders")
        client.produce("orders", batch_of(VALUES))
        for number, name in enumerate("dcba"):
            commit(client, name, "orders", topic_id, number)
        metrics = Metrics(port)
    lag = {group: metrics.of("warmlog_group_lag_records", group=group, topic="orders") for group in "ab"}
    assert lag == {"a": 7, "b": 8}
    assert metrics.of("warmlog_group_lag_records", group="~other", topic="~other") == 9 + 10
    assert metrics.of("warmlog_group_members", group="~other") == 0
    assert sum(name == "warmlog_group_lag_seconds" for name, _ in metrics) == 2


PASSWORD = "geheim-0815"
SECURED = {
    "listeners": "main=sasl_plaintext://127.0.0.1:0",
    "authorization": "acl",
    "super_users": "User:root",
}
TEXT_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ .+")


def lines_of(output: str) -> list[dict[str, Any]]:
    """Every line, each of which must be one JSON object."""
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with the users alice, who has no rights, and root."""
    for name in ("alice", "root"):
        arguments = ("user", "add", name, "--data-dir", tmp_path / "data")
        succeeded(CommandLine("127.0.0.1:1")(*arguments, given=f"{PASSWORD}\n".encode()))
    with BrokerProcess(tmp_path / "data", log_format="auto", log_level="debug", **SECURED) as broker:
        yield broker


def test_lines_are_json_with_the_request_that_was_refused_and_have_no_secret(secured: BrokerProcess) -> None:
    with warmlog.blocking.Admin(secured.address, username="root", password=PASSWORD) as root:
        root.create_topic("flights", partitions=1)
    secret = "a record's value"
    with (
        pytest.raises(TopicAuthorizationFailed),
        warmlog.blocking.Producer(secured.address, username="alice", password=PASSWORD) as producer,
    ):
        producer.send("flights", secret.encode()).result()
    with (
        pytest.raises(warmlog.WarmlogError),
        warmlog.blocking.Admin(secured.address, username="alice", password="falsch-4711"),
    ):
        pass
    assert secured.terminate() == 0
    lines = lines_of(secured.output)
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
        assert line["level"] in ("debug", "info", "warning", "error", "critical")
        assert line["logger"].startswith(("warmlog_broker.", "asyncio"))
        assert line["message"]
    (refused, *_) = [line for line in lines if "was refused" in line["message"]]
    assert refused["level"] == "warning"
    assert (refused["principal"], refused["listener"]) == ("User:alice", "main")
    assert refused["api"] in refused["message"]
    assert refused["client"] in refused["message"]
    ended = [line for line in lines if line.get("request") == refused["request"] and "ended after" in line["message"]]
    assert [line["api"] for line in ended] == [refused["api"]]
    (failed,) = [line for line in lines if "authentication of" in line["message"]]
    assert (failed["api"], failed["principal"]) == ("Authenticate", "User:ANONYMOUS")
    assert "request" not in lines[0]
    for each in (PASSWORD, "falsch-4711", secret):
        assert each not in secured.output


def test_on_a_terminal_lines_are_text(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "warmlog_broker", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    command += ["--set", "log.level=debug"]
    shown = b""
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        try:
            while (ready := re.search(rb"listening on (\S+) ", shown)) is None:
                shown += os.read(controller, 65536)
            with WireClient(ready[1].decode()) as client:
                client.create_topic("t")
            process.terminate()
            while b"stopped" not in shown:
                shown += os.read(controller, 65536)
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(controller)
    lines = shown.decode().splitlines()
    assert all(TEXT_LINE.fullmatch(line) for line in lines), lines
    (created,) = [line for line in lines if "'t' created" in line]
    assert re.search(r" \[request 1-\d+, CreateTopics of User:ANONYMOUS from 127\.0\.0\.1:\d+\]$", created)


def test_levels_change_while_it_runs_and_a_restart_keeps_them(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, log_format="json", log_level="error,server=info") as broker:
        commands = CommandLine(broker.address)

        def said_of_topics() -> list[str]:
            return [line["message"] for line in lines_of(broker.output) if ".topics." in line["logger"]]

        succeeded(commands("topic", "create", "zero"))
        succeeded(commands("config", "set", "log.level=error,server=info,topics=info"))
        succeeded(commands("topic", "create", "one"))
        shown = json.loads(succeeded(commands("config", "show", "log.level", "--json")))["log.level"]
        assert (shown["value"], shown["origin"]) == ("error,server=info,topics=info", "altered")
        broker.restart()
        succeeded(commands("topic", "create", "two"))
        succeeded(commands("config", "unset", "log.level"))
        succeeded(commands("topic", "create", "three"))
        assert broker.terminate() == 0
    altered, one, two = said_of_topics()
    assert altered.endswith("has altered settings of the broker: log.level=error,server=info,topics=info")
    assert (one, two) == ("topic 'one' created, partitions: 1", "topic 'two' created, partitions: 1")


def test_the_journal_gets_the_priority_of_each_line(tmp_path: Path) -> None:
    class Service(BrokerProcess):
        def _launch(self, stderr: int) -> Any:
            found = os.fstat(stderr)
            self.environment = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
            return super()._launch(stderr)

    with Service(tmp_path / "data", log_format="auto", authorization="acl") as broker:
        with WireClient(broker.address) as client, pytest.raises(AuthorizationFailed):
            client.create_topic("t")
        broker.terminate()
    priorities = {"info": "<6>", "warning": "<4>"}
    levels = [(line[:3], json.loads(line[3:])["level"]) for line in broker.output.splitlines()]
    assert {level for _, level in levels} == set(priorities)
    assert all(priority == priorities[level] for priority, level in levels)


def test_why_it_does_not_start_is_a_line_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerFailed) as failed:
        BrokerProcess(tmp_path / "file", log_format="auto").start()
    (line,) = lines_of(failed.value.output)
    assert line["level"] == "critical"
    assert str(tmp_path / "file") in line["message"]


def test_what_no_part_of_the_broker_logs_is_logged_too() -> None:
    program = """
import asyncio, threading, warnings
from warmlog_broker import BrokerConfig
from warmlog_broker.server.log_lines import log_to_stderr

class Ending:
    def __del__(self): raise KeyError("in __del__")

async def main():
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)

log_to_stderr(BrokerConfig())
warnings.warn("a warning of Python")
thread = threading.Thread(target=lambda: [][1])
thread.start()
thread.join()
Ending()
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True)
    warning, thread, unraisable, callback = lines_of(ended.stderr)
    assert (warning["level"], warning["logger"]) == ("warning", "py.warnings")
    assert "a warning of Python" in warning["message"]
    assert (thread["level"], thread["exception"].splitlines()[-1]) == (
        "critical",
        "IndexError: list index out of range",
    )
    assert (unraisable["level"], "in __del__" in unraisable["exception"]) == ("error", True)
    assert callback["exception"].startswith("Traceback (most recent call last):\n")
    assert callback["exception"].endswith("ZeroDivisionError: division by zero")
