"""Decisions about rights, compared with a model that reads all rules."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.security.rights import (
    OPERATIONS_ON,
    Rights,
    concerns,
    decided_by,
    fits,
    why_unacceptable,
)
from warmlog_protocol.messages import ANY_NAME, CLUSTER_NAME, AclBinding, AclFilter, Operation, ResourceType

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
ALICE, BOB, EVERYONE = "User:alice", "User:bob", "User:*"
SINGLE = [operation for operation in Operation if operation is not Operation.ALL]
IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def rule(
    principal: str, operation: Operation, name: str = "t", *, is_prefix: bool = False, is_allowed: bool = True
) -> AclBinding:
    return AclBinding(principal, operation, TOPIC, name, is_prefix, is_allowed)


def may(rules: Sequence[AclBinding], principal: str, operation: Operation, name: str = "t") -> bool:
    return bool(Rights(rules).operations(principal, TOPIC, name) >> operation & 1)


# --- examples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", SINGLE)
def test_some_operations_allow_to_describe(operation: Operation) -> None:
    allowed = {each for each in SINGLE if may([rule(ALICE, operation)], ALICE, each)}
    assert allowed == {operation} | {each for each, by in IMPLIED.items() if operation in by}


def test_the_cluster_is_not_open_with_the_setting() -> None:
    rights = Rights(allows_without_rules=True)
    assert not rights.operations(ALICE, CLUSTER, CLUSTER_NAME)


def test_a_right_to_any_resource_must_not_be_denied_for_all_that_it_covers() -> None:
    def may_write_any(*rules: AclBinding) -> bool:
        return bool(Rights(rules).operations_on_any(ALICE, TOPIC) >> Operation.WRITE & 1)

    a_prefix = rule(ALICE, Operation.WRITE, "ab", is_prefix=True)
    assert not may_write_any()
    assert not may_write_any(rule(ALICE, Operation.READ))
    assert not may_write_any(rule(BOB, Operation.WRITE))
    assert may_write_any(rule(ALICE, Operation.WRITE))
    assert may_write_any(rule(EVERYONE, Operation.ALL, ANY_NAME))
    assert may_write_any(a_prefix, rule(ALICE, Operation.WRITE, "abc", is_prefix=True, is_allowed=False))
    assert not may_write_any(a_prefix, rule(ALICE, Operation.WRITE, "a", is_prefix=True, is_allowed=False))
    assert not may_write_any(a_prefix, rule(ALICE, Operation.WRITE, ANY_NAME, is_allowed=False))
    assert not may_write_any(rule(ALICE, Operation.WRITE), rule(ALICE, Operation.ALL, is_allowed=False))


# --- the model -------------------------------------------------------------------------------------------------------

names = st.sampled_from(["a", "ab", "abc", "b", "x", ANY_NAME])
principals = st.sampled_from([ALICE, BOB, EVERYONE])
rules_drawn = st.lists(
    st.builds(
        AclBinding,
        principals,
        st.sampled_from(Operation),
        st.sampled_from([TOPIC, GROUP]),
        names,
        st.booleans(),
        st.booleans(),
    ).filter(lambda drawn: not (drawn.is_prefix and drawn.name == ANY_NAME)),
    unique=True,
    max_size=12,
)


def model(
    rules: Sequence[AclBinding], principal: str, operation: Operation, kind: int, name: str, *, is_open: bool
) -> bool:
    """Kafka's decision, in its words."""
    about = [each for each in rules if each.resource_type == kind]
    about = [each for each in about if (name.startswith(each.name) if each.is_prefix else each.name in (name, "*"))]
    if not about:
        return is_open
    own = [each for each in about if each.principal in (principal, EVERYONE)]
    if any(not each.is_allowed and each.operation in (operation, Operation.ALL) for each in own):
        return False
    enough = {operation, Operation.ALL} | IMPLIED.get(operation, set())
    return any(each.is_allowed and each.operation in enough for each in own)


@given(
    rules=rules_drawn,
    removed=st.sets(st.integers(0, 11)),
    name=st.sampled_from(["a", "ab", "abc", "abcd", "b", "x", "y"]),
    is_open=st.booleans(),
)
def test_decisions_are_those_of_the_model(rules: list[AclBinding], removed: set[int], name: str, is_open: bool) -> None:
    left = [each for number, each in enumerate(rules) if number not in removed]
    rights = Rights(left, allows_without_rules=is_open)
    for principal in (ALICE, BOB):
        for kind in (TOPIC, GROUP):
            operations = rights.operations(principal, kind, name)
            for operation in SINGLE:
                expected = model(left, principal, operation, kind, name, is_open=is_open)
                assert bool(operations >> operation & 1) == expected
                concerned = [each for each in left if concerns(each, kind, name)]
                deciding = decided_by(concerned, principal, operation)
                if concerned:
                    assert bool(deciding and deciding[0].is_allowed) == expected
                denies = bool(deciding) and not deciding[0].is_allowed
                assert rights.is_denied(principal, operation, kind, name) == denies


@given(rules=rules_drawn)
def test_a_right_to_any_topic_is_one_to_some_name(rules: list[AclBinding]) -> None:
    anything = Rights(rules).operations_on_any(ALICE, TOPIC)
    some = 0
    for name in ("a", "ab", "abc", "b", "x", "a~", "ab~", "abc~", "b~", "x~", "~"):  # of each rule, and beyond it
        some |= Rights(rules).operations(ALICE, TOPIC, name)
    assert anything == some


# --- rules and filters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (AclBinding("alice", Operation.READ, TOPIC, "t"), "User: and the name"),
        (AclBinding("User:", Operation.READ, TOPIC, "t"), "User: and the name"),
        (AclBinding("User:" + "x" * 2000, Operation.READ, TOPIC, "t"), "User: and the name"),
        (AclBinding(ALICE, 1, TOPIC, "t"), "operation 1 on a TOPIC"),
        (AclBinding(ALICE, Operation.CLUSTER_ACTION, TOPIC, "t"), "CLUSTER_ACTION on a TOPIC"),
        (AclBinding(ALICE, Operation.READ, CLUSTER, CLUSTER_NAME), "READ on a CLUSTER"),
        (AclBinding(ALICE, Operation.READ, 6, "t"), "resource type 6"),
        (AclBinding(ALICE, Operation.ALTER, CLUSTER, "mine"), CLUSTER_NAME),
        (AclBinding(ALICE, Operation.ALTER, CLUSTER, CLUSTER_NAME, True), CLUSTER_NAME),
        (AclBinding(ALICE, Operation.READ, GROUP, ""), "0 characters"),
        (AclBinding(ALICE, Operation.READ, GROUP, "g" * 256), "256 characters"),
        (AclBinding(ALICE, Operation.READ, GROUP, "*", True), "not a prefix"),
        (AclBinding(ALICE, Operation.READ, TOPIC, "orders*"), "as a prefix"),
    ],
)
def test_what_cannot_be_a_rule_is_told(wrong: AclBinding, told: str) -> None:
    assert told in why_unacceptable(wrong)


def test_what_can_be_a_rule_is_accepted() -> None:
    for kind, operations in OPERATIONS_ON.items():
        for operation in operations:
            name = CLUSTER_NAME if kind is CLUSTER else "orders."
            assert why_unacceptable(AclBinding(ALICE, operation, kind, name, kind is not CLUSTER)) == ""
    assert why_unacceptable(rule(EVERYONE, Operation.READ, ANY_NAME)) == ""


def test_a_filter_selects_by_each_field() -> None:
    found = rule(ALICE, Operation.READ, "orders", is_prefix=True)
    assert fits(found, AclFilter())
    assert fits(found, AclFilter(ALICE, Operation.READ, TOPIC, "orders", True, True))
    for other in (
        AclFilter(principal=BOB),
        AclFilter(operation=Operation.WRITE),
        AclFilter(resource_type=GROUP),
        AclFilter(name="orders.eu"),
        AclFilter(is_prefix=False),
        AclFilter(is_allowed=False),
    ):
        assert not fits(found, other)
    assert fits(found, AclFilter(name="orders.eu", is_matching=True))
    assert not fits(found, AclFilter(name="order", is_matching=True))
