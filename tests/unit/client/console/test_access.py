"""Which rules the console's "Add right" and "Delete right" mean."""

import pytest

from warmlog.admin.access.acls import Acl
from warmlog.console.access import _command, _filter, _rule


def test_a_rule_is_what_was_typed_and_no_other_is_deleted() -> None:
    given = ("User:bob", "read", "topic", "orders*", "deny")
    assert _rule(*given) == Acl("User:bob", "read", "topic", "orders", is_prefix=True, is_allowed=False)
    assert _filter(*given) == {
        "principal": "User:bob",
        "operation": "read",
        "resource_type": "topic",
        "name": "orders",
        "is_prefix": True,
        "is_allowed": False,
    }
    assert _command("add", *given) == "acl add User:bob read --topic orders --prefix --deny"
    flags = "--prefix --deny"
    assert _command("delete", *given) == f"acl delete --principal User:bob --operation read --topic orders {flags}"


def test_the_cluster_needs_no_name_and_everything_else_does() -> None:
    assert _filter("User:bob", "alter", "cluster", "", "allow")["name"] is None
    for resource in ("topic", "group", "transactional_id"):
        with pytest.raises(ValueError, match="name the"):
            _filter("User:bob", "read", resource, "", "allow")
    with pytest.raises(ValueError, match="allow nor deny"):
        _filter("User:bob", "read", "topic", "orders", "")
