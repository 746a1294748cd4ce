"""Which rules the console's "Add right" and "Delete right" mean."""

import shlex

import pytest

from warmlog.admin.access.acls import Acl
from warmlog.console.pages.access import command, filter_of, rule


def test_a_rule_is_what_was_typed_and_no_other_is_deleted() -> None:
    given = ("User:bob", "read", "topic", "orders*", "deny")
    assert rule(*given) == Acl("User:bob", "read", "topic", "orders", is_prefix=True, is_allowed=False)
    assert filter_of(*given) == {
        "principal": "User:bob",
        "operation": "read",
        "resource_type": "topic",
        "name": "orders",
        "is_prefix": True,
        "is_allowed": False,
    }
    assert shlex.join(command("add", *given)) == "acl add User:bob read --topic orders --prefix --deny"
    whom = "--principal User:bob --operation read"
    assert shlex.join(command("delete", *given)) == f"acl delete {whom} --topic orders --prefix --deny"


def test_the_cluster_needs_no_name_and_everything_else_does() -> None:
    assert filter_of("User:bob", "alter", "cluster", "", "allow")["name"] is None
    for resource in ("topic", "group", "transactional_id"):
        with pytest.raises(ValueError, match="name the"):
            filter_of("User:bob", "read", resource, "", "allow")
    with pytest.raises(ValueError, match="allow nor deny"):
        filter_of("User:bob", "read", "topic", "orders", "")
