"""ACLs, quotas and users by Kafka's clients: what they change is in force here, and told as they expect it."""

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import admin as of_kafka

from broker_thread import BrokerThread
from kafka_client import KafkaClient
from warmlog.blocking import Admin
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.kafka.schema import API

TIMEOUT_S = 40
RULE = {"principal": "User:bob", "host": "*", "operation": 3, "permission_type": 3}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """With rights, of which clients have all."""
    settings = {"kafka_listen": "127.0.0.1:0", "authorization": "acl", "super_users": "User:ANONYMOUS"}
    with BrokerThread(tmp_path_factory.mktemp("broker") / "data", **settings) as running:
        yield running


@pytest.fixture
def own(broker: BrokerThread) -> Iterator[Admin]:
    with Admin(broker.address) as client:
        yield client


def create(client: KafkaClient, *rules: dict[str, Any]) -> list[int]:
    rule = API["CreateAcls"].request.AclCreation
    results = client.call("CreateAcls", 3, creations=[rule(**each) for each in rules]).results
    return [each.error_code for each in results]


def described(client: KafkaClient, **wanted: Any) -> set[tuple[int, str, int, str, int, int]]:
    values: dict[str, Any] = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    values |= dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))
    told = client.call("DescribeAcls", 3, **values | wanted)
    assert told.error_code == 0
    return {
        (each.resource_type, each.resource_name, each.pattern_type, acl.principal, acl.operation, acl.permission_type)
        for each in told.resources
        for acl in each.acls
    }


def test_rules_are_created_found_and_deleted(client: KafkaClient, own: Admin) -> None:
    literal = RULE | {"resource_type": 2, "resource_name": "orders", "resource_pattern_type": 3}
    prefixed = RULE | {"resource_type": 2, "resource_name": "ord", "resource_pattern_type": 4, "permission_type": 2}
    elsewhere = literal | {"host": "10.0.0.1"}
    assert create(client, literal, prefixed, elsewhere, literal | {"resource_pattern_type": 2}) == [
        0,
        0,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert create(client, literal | {"resource_type": 6}) == [ErrorCode.INVALID_REQUEST]
    both = {(2, "orders", 3, "User:bob", 3, 3), (2, "ord", 4, "User:bob", 3, 2)}
    assert described(client) == both
    assert described(client, resource_type_filter=2, resource_name_filter="orders", pattern_type_filter=2) == both
    assert described(client, resource_type_filter=2, resource_name_filter="orders", pattern_type_filter=3) == {
        (2, "orders", 3, "User:bob", 3, 3)
    }
    assert described(client, permission_type=2) == {(2, "ord", 4, "User:bob", 3, 2)}
    assert described(client, principal_filter="User:eve") == described(client, host_filter="10.0.0.1") == set()
    assert len(own.describe_acls()) == 2
    wanted = API["DeleteAcls"].request.DeleteAclsFilter
    any_of = {"pattern_type_filter": 1, "host_filter": None, "operation": 1, "permission_type": 1}
    filters = [
        wanted(2, "orders", principal_filter=None, **any_of | {"pattern_type_filter": 3}),
        wanted(1, None, principal_filter="User:bob", **any_of),
        wanted(1, None, principal_filter=None, **any_of | {"permission_type": 9}),
    ]
    results = client.call("DeleteAcls", 3, filters=filters).filter_results
    assert [(each.error_code, [acl.resource_name for acl in each.matching_acls]) for each in results] == [
        (0, ["orders"]),
        (0, ["ord"]),
        (ErrorCode.INVALID_REQUEST, []),
    ]
    assert own.describe_acls() == []


def test_trap_27_without_rights_that_is_said(tmp_path: Any) -> None:
    with (
        BrokerThread(tmp_path / "data", listeners="kafka=kafka+plaintext://127.0.0.1:0") as running,
        KafkaClient(running.broker.address) as client,
    ):
        told = client.call("DescribeAcls", 1, resource_type_filter=1, operation=1, permission_type=1)
        assert told.error_code == ErrorCode.SECURITY_DISABLED
        rule = RULE | {"resource_type": 2, "resource_name": "x", "resource_pattern_type": 3}
        assert create(client, rule) == [ErrorCode.SECURITY_DISABLED]
        filters = [API["DeleteAcls"].request.DeleteAclsFilter(1)]
        (result,) = client.call("DeleteAcls", 1, filters=filters).filter_results
        assert result.error_code == ErrorCode.SECURITY_DISABLED


def alter_quota(client: KafkaClient, entity: dict[str, str | None], *ops: tuple[str, float, bool], **more: Any) -> int:
    request = API["AlterClientQuotas"].request
    parts = [request.EntityData(*each) for each in entity.items()]
    entry = request.EntryData(parts, [request.OpData(*each) for each in ops])
    (result,) = client.call("AlterClientQuotas", 1, entries=[entry], **more).entries
    assert [(each.entity_type, each.entity_name) for each in result.entity] == list(entity.items())
    code: int = result.error_code
    return code


def quotas(client: KafkaClient, *components: tuple[str, int, str | None], strict: bool = False) -> list[Any]:
    component = API["DescribeClientQuotas"].request.ComponentData
    wanted = [component(*each) for each in components]
    told = client.call("DescribeClientQuotas", 1, components=wanted, strict=strict).entries
    return [
        ({each.entity_type: each.entity_name for each in entry.entity}, {each.key: each.value for each in entry.values})
        for entry in told
    ]


def test_quotas_of_bytes_are_changed_and_told(client: KafkaClient, own: Admin) -> None:
    rate, other = "producer_byte_rate", "consumer_byte_rate"
    assert alter_quota(client, {"user": "bob"}, (rate, 1e6, False), (other, 2e6, False)) == 0
    assert alter_quota(client, {"user": None, "client-id": "etl"}, (rate, 3e6, False)) == 0
    assert alter_quota(client, {"client-id": None}, (rate, 4e6, False)) == 0
    assert alter_quota(client, {"client-id": None}, (rate, 5e6, False), validate_only=True) == 0
    bob = ({"user": "bob"}, {rate: 1e6, other: 2e6})
    both = ({"user": None, "client-id": "etl"}, {rate: 3e6})
    default = ({"client-id": None}, {rate: 4e6})
    assert sorted(quotas(client), key=repr) == sorted([bob, both, default], key=repr)
    assert quotas(client, ("user", 0, "bob")) == [bob]
    assert quotas(client, ("user", 1, None)) == [both]
    assert quotas(client, ("client-id", 2, None), strict=True) == [default]
    assert quotas(client, ("ip", 2, None)) == []
    assert {(each.user, each.client_id) for each in own.describe_quotas()} == {("bob", None), ("*", "etl"), (None, "*")}
    for entity, op in [
        ({"ip": "10.0.0.1"}, (rate, 1.0, False)),
        ({"user": "bob"}, ("request_percentage", 50.0, False)),
        ({"user": "bob"}, (rate, -1.0, False)),
        ({}, (rate, 1.0, False)),
    ]:
        assert alter_quota(client, entity, op) == ErrorCode.INVALID_REQUEST
    for entity in ({"user": "bob"}, {"user": None, "client-id": "etl"}, {"client-id": None}):
        assert alter_quota(client, entity, (rate, 0.0, True), (other, 0.0, True)) == 0
    assert own.describe_quotas() == []


def test_a_request_changes_so_many_quotas_and_each_independently(client: KafkaClient, own: Admin) -> None:
    request = API["AlterClientQuotas"].request
    rate = request.OpData("producer_byte_rate", 1e6, False)

    def alter(*kinds: str) -> list[int]:
        entries = [request.EntryData([request.EntityData(kind, f"u{n}")], [rate]) for n, kind in enumerate(kinds)]
        return [each.error_code for each in client.call("AlterClientQuotas", 1, entries=entries).entries]

    assert alter(*["user"] * 101) == [ErrorCode.INVALID_REQUEST] * 101
    assert own.describe_quotas() == []
    assert alter("user", "ip", "client-id") == [0, ErrorCode.INVALID_REQUEST, 0]
    assert {(each.user, each.client_id) for each in own.describe_quotas()} == {("u0", None), (None, "u2")}
    for entity in ({"user": "u0"}, {"client-id": "u2"}):
        assert alter_quota(client, entity, ("producer_byte_rate", 0.0, True)) == 0


def test_users_get_and_lose_passwords(
    broker: BrokerThread, client: KafkaClient, kafka_address: str, own: Admin
) -> None:
    admin = of_kafka.AdminClient({"bootstrap.servers": kafka_address})
    info = of_kafka.ScramCredentialInfo(of_kafka.ScramMechanism.SCRAM_SHA_256, 4096)
    upsertion = of_kafka.UserScramCredentialUpsertion("carol", info, b"geheim", b"salt of carol")
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(TIMEOUT_S)
    assert [user.name for user in own.list_users()] == ["carol"]
    assert fits(broker, "carol", "SCRAM-SHA-256", b"geheim")
    request = API["AlterUserScramCredentials"].request
    salted = hashlib.pbkdf2_hmac("sha512", b"other", b"another salt", 8192)
    other = request.ScramCredentialUpsertion("carol", 2, 8192, b"another salt", salted)
    weak = request.ScramCredentialUpsertion("dave", 1, 10, b"another salt", bytes(32))
    unknown = request.ScramCredentialUpsertion("erin", 3, 8192, b"another salt", bytes(32))
    deletion = request.ScramCredentialDeletion("nobody", 1)
    told = client.call("AlterUserScramCredentials", 0, deletions=[deletion], upsertions=[other, weak, unknown]).results
    assert {each.user: each.error_code for each in told} == {
        "nobody": ErrorCode.RESOURCE_NOT_FOUND,
        "carol": 0,
        "dave": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "erin": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    }
    assert fits(broker, "carol", "SCRAM-SHA-512", b"other")
    assert fits(broker, "carol", "SCRAM-SHA-256", b"geheim")
    names = API["DescribeUserScramCredentials"].request.UserName
    wanted = [names("carol"), names("nobody"), names("twice"), names("twice")]
    described = client.call("DescribeUserScramCredentials", 0, users=wanted).results
    assert [(each.user, each.error_code) for each in described] == [
        ("carol", 0),
        ("nobody", ErrorCode.RESOURCE_NOT_FOUND),
        ("twice", ErrorCode.DUPLICATE_RESOURCE),
    ]
    assert {(each.mechanism, each.iterations) for each in described[0].credential_infos} == {(1, 4096), (2, 8192)}
    for mechanism, left in [(1, ["carol"]), (2, [])]:
        deletion = request.ScramCredentialDeletion("carol", mechanism)
        (result,) = client.call("AlterUserScramCredentials", 0, deletions=[deletion]).results
        assert (result.error_code, [user.name for user in own.list_users()]) == (0, left)


def fits(broker: BrokerThread, user: str, mechanism: str, password: bytes) -> bool:
    """Whether the broker has stored this password."""
    from warmlog_protocol.sasl.derivation import derive_keys

    (stored,) = broker.in_loop(lambda running: running.services.users.credentials(user, mechanism))
    keys = derive_keys(mechanism, password.decode(), stored.salt, stored.iterations)
    return keys.stored == stored.stored_key
