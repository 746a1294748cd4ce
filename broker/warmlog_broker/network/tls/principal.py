"""The principal of a client that has shown a certificate, by the setting `tls.principal`.

`cn`: its common name, `User:alice`; the most specific one if there are several. `dn`: the whole distinguished name as
in RFC 4514, `User:CN=alice,OU=data,O=example`, the most specific part first, as Kafka has it.
"""

import re
from collections.abc import Mapping
from typing import Any

from warmlog_broker.config.broker_settings import PrincipalRule
from warmlog_protocol.messages import USER_PREFIX

_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""https://www.rfc-editor.org/rfc/rfc4514#section-3"""
_SPECIAL = re.compile(r'[,+"\\<>;]|^[ #]| $')


def principal_of(certificate: Mapping[str, Any], rule: str) -> str:
    """Return the principal; empty if the subject has no name for it. `certificate` is as `getpeercert` returns it."""
    subject: tuple[tuple[tuple[str, str], ...], ...] = certificate.get("subject", ())
    if rule == PrincipalRule.CN:
        names = [value for parts in subject for name, value in parts if name == "commonName"]
        name = names[-1] if names else ""
    else:
        name = ",".join(
            "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in parts)
            for parts in reversed(subject)
        )
    return f"{USER_PREFIX}{name}" if name else ""


def _escaped(value: str) -> str:
    return _SPECIAL.sub(lambda found: "\\" + found[0], value).replace("\0", "\\00")
