"""Settings of a running broker, altered over real sockets: live at once, durable, or refused."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import force_setattr

from broker_process import BrokerProcess
from broker_thread import BrokerThread
from integration.command_line import CommandLine
from warmlog.blocking import Admin
from warmlog.errors import InvalidConfig, InvalidPartitions, InvalidRequest, NeedsRestart
from warmlog_broker.config.broker_config import BROKER_SETTINGS, SETTINGS, BrokerConfig
from warmlog_broker.metadata.log_file import FILE_NAME, read_state


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path / "data", num_partitions=2, retention_ms=5000) as running:
        yield running


@pytest.fixture
def admin(broker: BrokerThread) -> Iterator[Admin]:
    with Admin(broker.address) as client:
        yield client


def test_an_altered_setting_is_in_force_at_once_and_shows_where_it_is_from(admin: Admin) -> None:
    assert admin.alter_broker(set={"num.partitions": 3, "fetch.max.wait.ms": "2s"}) == {
        "num.partitions": "3",
        "fetch.max.wait.ms": "2000",
    }
    found = admin.describe_broker()
    assert (found["num.partitions"].value, found["num.partitions"].source) == ("3", "altered")
    assert found["fetch.max.wait.ms"].value == "2000"
    admin.create_topic("t")
    assert len(admin.describe_topic("t").partitions) == 3


def test_an_unset_setting_has_the_value_of_the_start_again(admin: Admin) -> None:
    admin.alter_broker(set={"num.partitions": 3, "retention.ms": "1h", "fetch.max.bytes": "1MiB"})
    assert admin.alter_broker(unset=["num.partitions", "retention.ms", "node.id"]) == {"fetch.max.bytes": "1048576"}
    found = admin.describe_broker()
    assert found["num.partitions"].value == "2"
    assert found["retention.ms"].value == "5000"
    assert found["fetch.max.bytes"].source == "altered"


def test_an_altered_default_is_in_force_for_topics_without_their_own_value(broker: BrokerThread, admin: Admin) -> None:
    admin.create_topic("plain")
    admin.create_topic("own", configs={"segment.bytes": 4096})
    admin.alter_broker(set={"segment.bytes": "8KiB"})
    assert admin.describe_topic("plain").configs["segment.bytes"].value == "8192"
    assert admin.describe_topic("own").configs["segment.bytes"].value == "4096"
    logs = broker.in_loop(lambda running: {p.key.topic: p.log.local.config for p in running.topics.partitions})
    assert (logs["plain"].segment_bytes, logs["own"].segment_bytes) == (8192, 4096)
    admin.alter_topic("own", unset=["segment.bytes"])
    assert admin.describe_topic("own").configs["segment.bytes"].value == "8192"


def test_a_default_that_contradicts_a_topic_is_refused(admin: Admin) -> None:
    admin.create_topic("t", configs={"max.compaction.lag.ms": 1000})
    with pytest.raises(InvalidConfig, match=r"topic 't': min\.compaction\.lag\.ms"):
        admin.alter_broker(set={"min.compaction.lag.ms": 2000})
    assert admin.describe_broker()["min.compaction.lag.ms"].value == "0"


def test_a_static_setting_needs_a_restart_and_nothing_of_the_request_is_altered(admin: Admin) -> None:
    with pytest.raises(
        NeedsRestart, match=r"flush\.threads cannot be altered while the broker runs, it needs a restart"
    ):
        admin.alter_broker(set={"num.partitions": 3, "flush.threads": 2})
    assert admin.describe_broker()["num.partitions"].value == "2"


@pytest.mark.parametrize(
    ("wanted", "unset", "error", "words"),
    [
        ({"num.partition": 3}, [], InvalidConfig, r"did you mean num\.partitions"),
        ({}, ["num.partition"], InvalidConfig, r"did you mean num\.partitions"),
        ({"num.partitions": 0}, [], InvalidConfig, "a whole number from 1"),
        ({"num.partitions": 5000}, [], InvalidConfig, r"max\.partitions\.per\.topic"),
        ({"num.partitions": 3}, ["num.partitions"], InvalidRequest, "both set and unset"),
    ],
)
def test_a_wrong_change_is_refused(
    admin: Admin, wanted: dict[str, int], unset: list[str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        admin.alter_broker(set=wanted, unset=unset)
    assert not [name for name, each in admin.describe_broker().items() if each.source == "altered"]


def test_a_trial_changes_nothing(broker: BrokerThread, admin: Admin, tmp_path: Path) -> None:
    assert admin.alter_broker(set={"num.partitions": 3}, validate_only=True) == {"num.partitions": "3"}
    assert admin.describe_broker()["num.partitions"].value == "2"
    assert read_state(tmp_path / "data" / FILE_NAME).broker_settings == {}


def test_limits_that_parts_keep_are_changed_in_them(broker: BrokerThread, admin: Admin) -> None:
    admin.alter_broker(set={"max.connections.per.ip": 7, "group.max.size": 3, "max.partitions": 2})
    assert broker.in_loop(lambda running: running._connections.limit_per_address) == 7
    assert broker.in_loop(lambda running: running.services.coordinators.groups._limits.config.group_max_size) == 3
    with pytest.raises(InvalidPartitions, match=r"max\.partitions is 2"):
        admin.create_topic("t", partitions=3)


def test_each_dynamic_setting_can_be_altered_and_is_told_to_be(admin: Admin) -> None:
    found = admin.describe_broker()
    assert {name for name, each in found.items() if each.is_dynamic} == {
        name for name, setting in SETTINGS.items() if setting.is_dynamic
    }
    values = {name: found[name].value for name, setting in SETTINGS.items() if setting.is_dynamic}
    assert len(values) > 40
    assert admin.alter_broker(set=values) == values


def test_a_configuration_takes_every_dynamic_setting_and_no_other() -> None:
    used, other = BrokerConfig(), BrokerConfig()
    for setting in BROKER_SETTINGS:
        force_setattr(other, setting.attribute, "other")
    used.take(other)
    for setting in BROKER_SETTINGS:
        assert (getattr(used, setting.attribute) == "other") == setting.is_dynamic


def test_altered_settings_survive_a_kill_and_take_precedence_over_the_start(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", num_partitions=2) as running:
        with Admin(running.address) as client:
            client.alter_broker(set={"num.partitions": 3, "max.connections.per.ip": 50, "retention.ms": "9d"})
        running.kill()
    with BrokerThread(tmp_path / "data", num_partitions=4) as running, Admin(running.address) as client:
        found = client.describe_broker()
        assert (found["num.partitions"].value, found["num.partitions"].source) == ("3", "altered")
        assert running.in_loop(lambda broker: broker._connections.limit_per_address) == 50
        client.create_topic("t")
        described = client.describe_topic("t")
        assert len(described.partitions) == 3
        assert described.configs["retention.ms"].value == str(9 * 86_400_000)
        client.alter_broker(unset=["num.partitions"])
        assert client.describe_broker()["num.partitions"].value == "4"


def test_altered_settings_that_contradict_the_start_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with BrokerThread(tmp_path / "data") as running, Admin(running.address) as client:
        client.alter_broker(set={"num.partitions": 2000, "max.partitions.per.topic": 3000, "fetch.max.bytes": 4096})
        client.alter_broker(unset=["max.partitions.per.topic"], set={"num.partitions": 900})
        client.alter_broker(set={"group.session.timeout.ms": 700_000, "group.max.session.timeout.ms": 800_000})
    with (
        caplog.at_level(logging.WARNING),
        BrokerThread(tmp_path / "data", max_partitions_per_topic=100) as running,
        Admin(running.address) as client,
    ):
        found = client.describe_broker()
        assert found["num.partitions"].value == "1"
        assert found["fetch.max.bytes"].value == "4096"
        assert found["group.session.timeout.ms"].value == "700000"  # which needs the one that was altered after it
    (line,) = [each for each in caplog.messages if "is not in force" in each]
    assert "num.partitions" in line


def test_the_command_line_alters_settings(broker: BrokerThread) -> None:
    commands = CommandLine(broker.address)
    tried = commands("config", "set", "num.partitions=3", "--dry-run")
    assert (tried.returncode, b"nothing is altered" in tried.stderr) == (0, True)
    assert commands("config", "set", "num.partitions=3", "retention.ms=7d").returncode == 0
    rows = json.loads(commands("config", "show", "--json").stdout)
    assert rows["num.partitions"] == {"value": "3", "origin": "altered", "place": "", "is_dynamic": True}
    done = commands("config", "unset", "num.partitions")
    assert b"altered the broker: num.partitions=2" in done.stderr
    refused = commands("config", "set", "flush.threads=3")
    assert refused.returncode == 1
    assert b"needs a restart" in refused.stderr
    assert commands("config", "set", "flush.threads").returncode == 2
