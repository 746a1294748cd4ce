"""What clients are told that lack a right: an error that names it, at once, with every kind of client."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import warmlog
import warmlog.blocking
from broker_thread import BrokerThread
from warmlog import Acl
from warmlog.admin.access.user_changes import creation
from warmlog.ranges.arrow_reader import arrow_reader
from warmlog.spark.options.read_options import parse_read_options
from warmlog.spark.options.write_options import parse_write_options
from warmlog.spark.read.planning import plan_batch
from warmlog.spark.write.task import write_batches
from warmlog_broker.tools.access import respond
from warmlog_protocol.messages import AlterUsersRequest

ROOT: Any = {"username": "root", "password": "geheim"}
BOB: Any = {"username": "bob", "password": "geheim"}
AT_ONCE_S = 20.0
"""Far below every timeout of a client."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    """A broker that asks for rights, with topic t, a super user root, and bob, who has no right."""
    for name in ("root", "bob"):
        respond(tmp_path, AlterUsersRequest([creation(name, "geheim")]))
    listeners = "main=sasl_plaintext://127.0.0.1:0"
    settings: Any = {"authorization": "acl", "super_users": "User:root", "group_heartbeat_interval_ms": 100}
    with BrokerThread(tmp_path, listeners=listeners, **settings) as running:
        with warmlog.blocking.Admin(running.address, **ROOT) as admin:
            admin.create_topic("t")
        yield running


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """No client waits for a right: nothing is retried until a timeout is over."""
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < AT_ONCE_S


def allow(broker: BrokerThread, *rights: tuple[str, str, str]) -> None:
    with warmlog.blocking.Admin(broker.address, **ROOT) as admin:
        admin.create_acls([Acl("User:bob", *right) for right in rights])


@pytest.mark.parametrize("rights", [[], [("describe", "topic", "t")], [("write", "topic", "other")]])
@pytest.mark.parametrize("options", [{}, {"acks": 1, "idempotent": False}, {"linger_ms": 0}])
async def test_a_producer_says_which_right_is_missing(
    broker: BrokerThread, rights: list[tuple[str, str, str]], options: dict[str, Any]
) -> None:
    await asyncio.to_thread(allow, broker, *rights)
    async with warmlog.Producer(broker.address, **BOB, **options) as producer:
        for _ in range(2):
            with pytest.raises(warmlog.TopicAuthorizationFailed, match=r"User:bob lacks the right \w+ on .*topic"):
                await producer.send("t", b"x")
        with pytest.raises(warmlog.TopicAuthorizationFailed):
            await producer.send_many("t", [b"x"] * 10)
        await asyncio.to_thread(allow, broker, ("write", "topic", "t"))
        assert (await producer.send("t", b"x")).offset == 0


async def test_a_producer_whose_right_is_taken_away_says_so(broker: BrokerThread) -> None:
    await asyncio.to_thread(allow, broker, ("write", "topic", "t"))
    async with warmlog.Producer(broker.address, **BOB) as producer, warmlog.Admin(broker.address, **ROOT) as admin:
        await producer.send("t", b"x")
        assert await admin.delete_acls(principal="User:bob") == [Acl("User:bob", "write", "topic", "t")]
        with pytest.raises(warmlog.TopicAuthorizationFailed, match="WRITE on topic 't'"):
            await producer.send("t", b"x")
        await admin.create_acls([Acl("User:bob", "write", "topic", "t")])
        assert (await producer.send("t", b"x")).offset == 1


@pytest.mark.parametrize(
    ("rights", "told"),
    [([], "DESCRIBE on topic 't'"), ([("write", "topic", "t")], "READ on topic 't'")],
)
async def test_a_consumer_says_which_right_is_missing(
    broker: BrokerThread, rights: list[tuple[str, str, str]], told: str
) -> None:
    await asyncio.to_thread(_fill, broker)
    await asyncio.to_thread(allow, broker, *rights)
    with pytest.raises(warmlog.TopicAuthorizationFailed, match=told):
        async with warmlog.Consumer(broker.address, topics=["t"], start="earliest", **BOB) as consumer:
            await anext(aiter(consumer.batches()))


async def test_a_consumer_whose_right_is_taken_away_says_so(broker: BrokerThread) -> None:
    await asyncio.to_thread(_fill, broker)
    await asyncio.to_thread(allow, broker, ("read", "topic", "t"))
    async with (
        warmlog.Admin(broker.address, **ROOT) as admin,
        warmlog.Consumer(broker.address, topics=["t"], start="earliest", **BOB) as consumer,
    ):
        batches = aiter(consumer.batches())
        await anext(batches)
        await admin.delete_acls(principal="User:bob")
        with pytest.raises(warmlog.TopicAuthorizationFailed, match="READ on topic 't'"):
            await anext(batches)


@pytest.mark.parametrize(
    ("rights", "error", "told"),
    [
        ([], warmlog.TopicAuthorizationFailed, "DESCRIBE on topic 't'"),
        ([("read", "topic", "t")], warmlog.GroupAuthorizationFailed, "READ on group 'g'"),
        ([("read", "group", "g")], warmlog.TopicAuthorizationFailed, "DESCRIBE on topic 't'"),
        ([("read", "group", "g"), ("describe", "topic", "t")], warmlog.TopicAuthorizationFailed, "READ on topic 't'"),
    ],
)
async def test_a_member_of_a_group_says_which_right_is_missing(
    broker: BrokerThread, rights: list[tuple[str, str, str]], error: type[warmlog.WarmlogError], told: str
) -> None:
    await asyncio.to_thread(_fill, broker)
    await asyncio.to_thread(allow, broker, *rights)
    with pytest.raises(error, match=told):
        async with warmlog.Consumer(broker.address, topics=["t"], group="g", start="earliest", **BOB) as consumer:
            await anext(aiter(consumer.batches()))


def test_with_its_rights_a_group_reads_and_commits(broker: BrokerThread) -> None:
    _fill(broker)
    allow(broker, ("read", "topic", "t"), ("read", "group", "g"))
    with warmlog.blocking.Consumer(broker.address, topics=["t"], group="g", start="earliest", **BOB) as consumer:
        assert [record.value for record in next(iter(consumer.batches()))] == [b"one"]
        consumer.commit()


async def test_a_member_whose_right_to_the_group_is_taken_away_says_so(broker: BrokerThread) -> None:
    await asyncio.to_thread(_fill, broker)
    await asyncio.to_thread(allow, broker, ("read", "topic", "t"), ("read", "group", "g"))
    async with (
        warmlog.Admin(broker.address, **ROOT) as admin,
        warmlog.Consumer(broker.address, topics=["t"], group="g", start="earliest", **BOB) as consumer,
    ):
        batches = aiter(consumer.batches())
        await anext(batches)
        await admin.delete_acls(resource_type="group")
        with pytest.raises(warmlog.GroupAuthorizationFailed, match="READ on group 'g'"):
            await consumer.commit()
        with pytest.raises((warmlog.MembershipLost, warmlog.GroupAuthorizationFailed), match="READ on group 'g'"):
            await anext(batches)
        with pytest.raises(warmlog.GroupAuthorizationFailed, match="READ on group 'g'"):
            await anext(aiter(consumer.batches()))


def test_bulk_readers_and_spark_say_which_right_is_missing(broker: BrokerThread) -> None:
    _fill(broker)
    given = {"bootstrap.servers": broker.address, "username": "bob", "password": "geheim"}
    reading = parse_read_options({**given, "subscribe": "t"}, 0)
    with pytest.raises(warmlog.TopicAuthorizationFailed, match="DESCRIBE on topic 't'"):
        plan_batch(reading)
    with pytest.raises(warmlog.TopicAuthorizationFailed, match="DESCRIBE on topic 't'"):
        arrow_reader(broker.address, ["t"], **BOB)
    allow(broker, ("describe", "topic", "t"))
    with pytest.raises(warmlog.TopicAuthorizationFailed, match="READ on topic 't'"):
        arrow_reader(broker.address, ["t"], **BOB).read_all()
    writing = parse_write_options({**given, "topic": "t"})
    rows = [pa.record_batch({"value": pa.array([b"one"], pa.binary())})]
    with pytest.raises(warmlog.TopicAuthorizationFailed, match="lacks the right WRITE"):
        write_batches(iter(rows), {"value": 0}, writing)
    allow(broker, ("read", "topic", "t"), ("write", "topic", "t"))
    assert arrow_reader(broker.address, ["t"], **BOB).read_all()["value"].to_pylist() == [b"one"]
    assert len(plan_batch(reading)) == 1
    assert write_batches(iter(rows), {"value": 0}, writing).records == 1


def test_an_admin_without_rights_is_refused_and_told(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address, **BOB) as admin:
        assert admin.topic_names() == []
        assert admin.list_groups() == []
        for ask in (admin.list_users, admin.describe_acls, admin.describe_broker, admin.describe_log_dirs):
            with pytest.raises(warmlog.ClusterAuthorizationFailed, match="on the cluster"):
                ask()
        with pytest.raises(warmlog.ClusterAuthorizationFailed, match="ALTER on the cluster"):
            admin.create_acls([Acl("User:bob", "all", "cluster")])
        for change in (admin.delete_topic, admin.create_topic):
            with pytest.raises(warmlog.TopicAuthorizationFailed, match="on topic 't'"):
                change("t")
    with warmlog.blocking.Admin(broker.address, **ROOT) as admin:
        assert admin.topic_names() == ["t"]
        assert admin.describe_acls() == []


def test_rights_are_added_listed_checked_and_removed(broker: BrokerThread) -> None:
    rules = [
        Acl("User:bob", "read", "topic", "orders.", is_prefix=True),
        Acl("User:*", "all", "topic", "orders.secret", is_allowed=False),
        Acl("User:bob", "alter", "cluster"),
    ]
    with warmlog.blocking.Admin(broker.address, **ROOT) as admin:
        admin.create_acls(rules)
        admin.create_acls(rules)
        assert len(admin.describe_acls()) == 3
        assert admin.describe_acls(resource_type="cluster")[0].name == "kafka-cluster"
        assert admin.describe_acls(name="orders.eu") == []
        assert admin.describe_acls(name="orders.eu", is_matching=True) == rules[:1]
        allowed = admin.check_acl("User:bob", "describe", "topic", "orders.eu")
        assert (allowed.is_allowed, allowed.acls) == (True, rules[:1])
        denied = admin.check_acl("User:bob", "read", "topic", "orders.secret")
        assert (denied.is_allowed, denied.acls) == (False, rules[1:2])
        assert admin.delete_acls(resource_type="topic") == rules[:2]
        assert [acl.operation for acl in admin.delete_acls(principal="User:bob")] == ["alter"]
        assert admin.describe_acls() == []


def test_what_is_wrong_with_a_rule_is_told(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address, **ROOT) as admin:
        with pytest.raises(ValueError, match="did you mean read"):
            admin.create_acls([Acl("User:bob", "raed", "topic", "t")])
        with pytest.raises(ValueError, match="did you mean topic"):
            admin.create_acls([Acl("User:bob", "read", "topics", "t")])
        with pytest.raises(warmlog.InvalidRequest, match="as a prefix"):
            admin.create_acls([Acl("User:bob", "read", "topic", "orders*")])
        with pytest.raises(TypeError):
            admin.create_acls([Acl("User:bob", "read", "topic", 5)])  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            admin.describe_acls(user="bob")  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="which rules"):
            admin.delete_acls()


def test_a_user_that_is_created_again_has_the_rules_of_its_name(broker: BrokerThread) -> None:
    _fill(broker)
    allow(broker, ("read", "topic", "t"))
    with warmlog.blocking.Admin(broker.address, **ROOT) as admin:
        admin.delete_user("bob")
        assert len(admin.describe_acls(principal="User:bob")) == 1
        admin.create_user("bob", "geheim")
    assert len(arrow_reader(broker.address, ["t"], **BOB).read_all()) == 1


def _fill(broker: BrokerThread) -> None:
    with warmlog.blocking.Producer(broker.address, **ROOT) as producer:
        producer.send("t", b"one").result()
