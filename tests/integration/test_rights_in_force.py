"""When rules are in force: at once, after a restart, and by the settings of the broker."""

from typing import Any

import pytest

from broker_thread import BrokerThread
from integration.test_rights import ALL_RULES, BATCH, CASES, SECRET, Op, T, give, is_refused, on_topic
from warmlog_broker.network.request import ANONYMOUS_PRINCIPAL
from warmlog_protocol import messages as m
from warmlog_protocol.errors import AuthorizationFailed
from wire_client import WireClient


def test_a_rule_is_in_force_at_once_on_open_connections_and_after_a_restart(tmp_path: Any) -> None:
    settings: Any = {"authorization": "acl", "super_users": "User:ops"}
    with BrokerThread(tmp_path, **settings) as broker:
        give(broker, *ALL_RULES)
        with WireClient(broker.address) as client:
            client.create_topic(T)
            assert client.fetch(T, 0)[1] == b""
            give(broker)
            with pytest.raises(AuthorizationFailed):
                client.fetch(T, 0)
            give(broker, on_topic(Op.READ))
            assert client.fetch(T, 0)[1] == b""
    with BrokerThread(tmp_path, **settings) as broker, WireClient(broker.address) as client:
        assert client.fetch(T, 0)[1] == b""
        with pytest.raises(AuthorizationFailed):
            client.produce(T, BATCH)


def test_a_fetch_that_waits_gets_nothing_that_comes_after_its_right_was_taken(tmp_path: Any) -> None:
    with BrokerThread(tmp_path, authorization="acl") as broker:
        give(broker, *ALL_RULES)
        with WireClient(broker.address) as client, WireClient(broker.address) as producer:
            client.create_topic(T)
            waiting = m.FetchRequest(60_000, 1, 1 << 20, [m.FetchPartition(T, 0, 0, 1 << 20)])
            fetches = [client.send(waiting) for _ in range(3)]
            client.call(m.MetadataRequest([]))
            give(broker, on_topic(Op.WRITE))
            producer.produce(T, BATCH)
            for fetch in fetches:
                assert client.fetched(fetch)[1] == b""


def test_super_users_need_no_rule(tmp_path: Any) -> None:
    with BrokerThread(tmp_path, authorization="acl", super_users=f"User:ops; {ANONYMOUS_PRINCIPAL}") as broker:
        for case in CASES:
            assert not is_refused(broker, case)


def test_with_the_setting_what_no_rule_is_about_is_open_to_all(tmp_path: Any) -> None:
    with BrokerThread(tmp_path, authorization="acl", allow_everyone_if_no_acl_found=True) as broker:
        rule = m.AclBinding("User:alice", Op.READ, m.ResourceType.TOPIC, "sec", is_prefix=True)
        give(broker, rule)
        with WireClient(broker.address) as client:
            client.create_topic(T)
            client.produce(T, BATCH)
            with pytest.raises(AuthorizationFailed):
                client.fetch(SECRET, 0)


def test_without_authorization_rules_are_kept_and_nothing_is_refused(tmp_path: Any) -> None:
    with BrokerThread(tmp_path) as broker:
        give(broker, m.AclBinding("User:*", Op.ALL, m.ResourceType.TOPIC, "*", is_allowed=False))
        with WireClient(broker.address) as client:
            client.create_topic(T)
            client.produce(T, BATCH)
            checked: Any = client.call(m.CheckAclRequest("User:alice", Op.READ, m.ResourceType.TOPIC, T))
    assert checked.is_allowed
    assert "authorization=none" in checked.reason
    assert "refused" in checked.reason


@pytest.mark.parametrize(
    "settings",
    [
        {"super_users": "alice"},
        {"super_users": "User:*"},
        {"super_users": "User:alice,User:bob"},
        {"authorization": "yes"},
    ],
)
def test_wrong_settings_are_told(tmp_path: Any, settings: dict[str, str]) -> None:
    with pytest.raises(Exception, match=next(iter(settings)).replace("_", ".")):
        BrokerThread(tmp_path, **settings)
