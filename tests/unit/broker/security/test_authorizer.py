"""Rules of a running broker: durable, bounded, and decisions that are remembered until a rule changes."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.metadata.log_file import MetadataLog, read_state
from warmlog_broker.metadata.metadata_log import AclsCreated, AclsDeleted, MetadataState
from warmlog_broker.metadata.store import LoneClusterStore, NodeStore
from warmlog_broker.security import authorizer as module
from warmlog_broker.security.authorizer import Authorizer, acl_entry, text_of
from warmlog_broker.tools.access import respond
from warmlog_protocol import messages as m
from warmlog_protocol.errors import InvalidRequest

TOPIC, GROUP = m.ResourceType.TOPIC, m.ResourceType.GROUP
ALICE, BOB = "User:alice", "User:bob"
READ = m.AclBinding(ALICE, m.Operation.READ, TOPIC, "t")
WRITE = m.AclBinding(ALICE, m.Operation.WRITE, TOPIC, "t")
WRONG = m.AclBinding("alice", m.Operation.READ, TOPIC, "t")
Make = Callable[..., Authorizer]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """An authorizer on a metadata log in the directory of the test; settings have underscores for dots."""
    threads, logs = ThreadPoolExecutor(1), []

    def build(**settings: str) -> Authorizer:
        texts = {name.replace("_", "."): value for name, value in settings.items()}
        config = BrokerConfig.from_settings({"data.dir": "d", "authorization": "acl", **texts})
        log, _ = MetadataLog.open(tmp_path)
        logs.append(log)
        return Authorizer(LoneClusterStore(NodeStore(log, threads)), config)

    yield build
    for log in logs:
        log.close()
    threads.shutdown()


async def test_rules_are_durable_and_in_force_at_once(make: Make, tmp_path: Path) -> None:
    rights = make()
    assert not rights.may(ALICE, m.Operation.READ, TOPIC, "t")
    assert await rights.create([READ, WRITE, READ], ALICE) == [None, None, None]
    assert rights.may(ALICE, m.Operation.READ, TOPIC, "t")
    assert list(read_state(tmp_path / "metadata.log").acls) == [READ, WRITE]
    assert await rights.delete([m.AclFilter(operation=m.Operation.READ)], ALICE) == [READ]
    assert not rights.may(ALICE, m.Operation.READ, TOPIC, "t")
    assert make().described(m.AclFilter()) == [WRITE]


async def test_a_wrong_rule_is_refused_and_the_others_are_added(make: Make) -> None:
    rights = make()
    errors = await rights.create([READ, WRONG], ALICE)
    assert errors[0] is None
    assert isinstance(errors[1], InvalidRequest)
    assert rights.described(m.AclFilter()) == [READ]


async def test_what_changes_nothing_writes_nothing(make: Make, tmp_path: Path) -> None:
    rights = make()
    await rights.create([READ], ALICE)
    size = (tmp_path / "metadata.log").stat().st_size
    await rights.create([READ], ALICE)
    assert await rights.delete([m.AclFilter(principal=BOB)], ALICE) == []
    assert (tmp_path / "metadata.log").stat().st_size == size


async def test_changes_at_the_same_time_lose_nothing(make: Make) -> None:
    rights = make()
    rules = [m.AclBinding(ALICE, m.Operation.READ, TOPIC, f"t{number}") for number in range(20)]
    await asyncio.gather(*(rights.create([rule, READ], ALICE) for rule in rules))
    assert set(rights.described(m.AclFilter())) == {*rules, READ}


async def test_numbers_are_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rights = make()
    monkeypatch.setattr(module, "MAX_ACLS", 2)
    other = m.AclBinding(BOB, m.Operation.READ, TOPIC, "t")
    errors = await rights.create([READ, WRITE, other], ALICE)
    assert [error is None for error in errors] == [True, True, False]
    assert "use prefixes" in str(errors[2])
    with pytest.raises(InvalidRequest):
        await rights.create([READ] * (module.MAX_NEW_ACLS + 1), ALICE)
    with pytest.raises(InvalidRequest):
        await rights.delete([m.AclFilter()] * (module.MAX_FILTERS + 1), ALICE)


async def test_decisions_are_remembered_up_to_a_bound(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rights = make()
    await rights.create([READ], ALICE)
    monkeypatch.setattr(module, "MAX_DECISIONS", 3)
    for number in range(10):
        assert not rights.may(BOB, m.Operation.READ, TOPIC, f"t{number}")
        assert rights.may(ALICE, m.Operation.READ, TOPIC, "t")
        assert len(rights._decisions) <= 3
    rights.may(BOB, m.Operation.READ, TOPIC, "x" * 100_000)
    assert all(len(name or "") < 1000 for _, _, name in rights._decisions)


async def test_a_check_says_why(make: Make) -> None:
    deny = m.AclBinding("User:*", m.Operation.ALL, TOPIC, "t", is_allowed=False)
    rights = make(super_users="User:root")
    await rights.create([READ, deny], ALICE)

    def told(principal: str, operation: m.Operation, name: str, by: Authorizer = rights) -> tuple[bool, str]:
        decision = by.check(m.CheckAclRequest(principal, operation, TOPIC, name))
        return decision.is_allowed, decision.reason

    assert told(ALICE, m.Operation.READ, "t") == (False, "a rule denies it")
    assert rights.check(m.CheckAclRequest(ALICE, m.Operation.READ, TOPIC, "t")).acls == [deny]
    await rights.delete([m.AclFilter(is_allowed=False)], ALICE)
    assert told(ALICE, m.Operation.DESCRIBE, "t") == (True, "a rule allows it")
    assert rights.check(m.CheckAclRequest(ALICE, m.Operation.DESCRIBE, TOPIC, "t")).acls == [READ]
    assert told(ALICE, m.Operation.WRITE, "t") == (False, "no rule allows it")
    assert told("User:root", m.Operation.WRITE, "t") == (True, "it is one of super.users")
    is_open = make(allow_everyone_if_no_acl_found="true")
    assert told(BOB, m.Operation.WRITE, "u", is_open)[0]
    assert "allow.everyone" in told(BOB, m.Operation.WRITE, "u", is_open)[1]
    for wrong in ((ALICE, m.Operation.ALL), ("alice", m.Operation.READ)):
        with pytest.raises(InvalidRequest):
            rights.check(m.CheckAclRequest(*wrong, TOPIC, "t"))


async def test_a_start_without_anyone_who_may_change_rights_is_told(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make()
    assert "no principal may change rights" in caplog.text
    caplog.clear()
    rights = make(super_users="User:root")
    await rights.create([m.AclBinding(ALICE, m.Operation.ALTER, m.ResourceType.CLUSTER, "kafka-cluster")], ALICE)
    make()
    assert "no principal may change rights" not in caplog.text


def test_rules_are_in_the_rewritten_file_in_bounded_entries() -> None:
    state = MetadataState()
    rules = [m.AclBinding(ALICE, m.Operation.READ, GROUP, f"g{number}") for number in range(2500)]
    state.apply(AclsCreated(rules))
    state.apply(AclsDeleted(rules[:1]))
    state.apply(AclsDeleted(rules[:1]))
    copy = MetadataState()
    for entry in state.entries():
        assert isinstance(entry, AclsCreated)
        assert len(entry.rules) <= 1000
        copy.apply(entry)
    assert list(copy.acls) == rules[1:]


def test_an_entry_has_what_is_new() -> None:
    state = MetadataState()
    state.apply(AclsCreated([READ]))
    assert acl_entry(state, [READ]) == (None, [None])
    assert acl_entry(state, [READ, WRITE, WRITE]) == (AclsCreated([WRITE]), [None] * 3)


def test_the_first_right_is_given_before_the_first_start(tmp_path: Path) -> None:
    def rules(wanted: m.AclFilter) -> list[m.AclBinding]:
        response = respond(tmp_path / "d", m.DescribeAclsRequest(wanted))
        assert isinstance(response, m.DescribeAclsResponse)
        return response.acls

    respond(tmp_path / "d", m.CreateAclsRequest([READ]))
    respond(tmp_path / "d", m.CreateAclsRequest([READ, WRITE]))
    assert rules(m.AclFilter()) == [READ, WRITE]
    assert rules(m.AclFilter(operation=m.Operation.WRITE)) == [WRITE]
    with pytest.raises(InvalidRequest):
        respond(tmp_path / "d", m.CreateAclsRequest([m.AclBinding(BOB, m.Operation.READ, TOPIC, "t"), WRONG]))
    assert rules(m.AclFilter(principal=BOB)) == []


def test_a_rule_in_words() -> None:
    assert text_of(READ) == "allow User:alice READ on topic 't'"
    cluster = m.AclBinding(BOB, m.Operation.ALTER, m.ResourceType.CLUSTER, "kafka-cluster", is_allowed=False)
    assert text_of(cluster) == "deny User:bob ALTER on the cluster"
    prefix = m.AclBinding(BOB, m.Operation.WRITE, m.ResourceType.TRANSACTIONAL_ID, "tx-", is_prefix=True)
    assert text_of(prefix) == "allow User:bob WRITE on transactional id 'tx-' as a prefix"
