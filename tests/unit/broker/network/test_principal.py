"""Principals of client certificates."""

from typing import Any

import pytest

from warmlog_broker.network.tls.principal import principal_of

ALICE = {
    "subject": (
        (("countryName", "SE"),),
        (("organizationName", "Example, Inc."),),
        (("organizationalUnitName", "data"), ("userId", "a1")),
        (("commonName", "people"),),
        (("commonName", "alice"),),
    )
}


@pytest.mark.parametrize(
    ("certificate", "rule", "principal"),
    [
        (ALICE, "cn", "User:alice"),
        (ALICE, "dn", "User:CN=alice,CN=people,OU=data+UID=a1,O=Example\\, Inc.,C=SE"),
        ({"subject": ((("organizationName", "o"),),)}, "cn", ""),
        ({"subject": ((("emailAddress", "a@b"),),)}, "dn", "User:emailAddress=a@b"),
        ({"subject": ()}, "dn", ""),
        ({}, "dn", ""),
    ],
)
def test_the_principal_is_the_common_name_or_the_distinguished_name(
    certificate: dict[str, Any], rule: str, principal: str
) -> None:
    assert principal_of(certificate, rule) == principal


@pytest.mark.parametrize(
    ("value", "escaped"),
    [
        ("a+b", "a\\+b"),
        (" a ", "\\ a\\ "),
        ("#a", "\\#a"),
        ("a=b", "a=b"),
        ('"<a>;\\', '\\"\\<a\\>\\;\\\\'),
        ("a\0", "a\\00"),
    ],
)
def test_a_name_cannot_be_taken_for_parts_of_another(value: str, escaped: str) -> None:
    """https://www.rfc-editor.org/rfc/rfc4514#section-2.4"""
    assert principal_of({"subject": ((("commonName", value),),)}, "dn") == f"User:CN={escaped}"
