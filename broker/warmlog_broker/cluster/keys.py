"""What the brokers of a cluster keep in etcd: the keys, and the values, which are JSON.

All keys begin with `/warmlog/<cluster id>/`:

=============================  ========================================================================================
key                            value
=============================  ========================================================================================
`cluster`                      `ClusterValue`: written by `warmlog cluster init`; without it no broker starts
`nodes/<node>`                 `NodeValue`: the mark of a node's disks, which a start compares with its own
`brokers/<node>`               `Registration`, which goes with its lease; its revision of creation is the broker epoch
`topics/<name>`                `TopicValue`: the topic exists since this is there
`names/<name>`                 the name of the topic, with every `.` as `_`: two topics never differ in these alone
`partitions/<id>/<number>`     `PartitionRecord` (replication/record.py)
`deleted/<id>`                 `DeletedValue`: a topic that was deleted; brokers that were away remove its files
`orders/<id>/<number>`         `OrderValue`: what an operator wants of a partition; its leader deletes it then
`drained/<node>`               `DrainedValue`: the node leads nothing, as long as this is there
`producer_ids`                 `ProducerIdsValue`: the next producer id of which no broker has a block
`settings`                     `SettingsValue`: those of all brokers that were altered
`users/<name>`                 `UserValue`
`user_secret`                  `SecretValue`
`acls/<type>/<name>`           `RulesValue`: all rules about the resources of one type and name
`quotas/<user>/<client>`       `QuotaValue`
=============================  ========================================================================================

Topic ids are in hexadecimal digits; names in keys are quoted as in URLs. `by` is the author of a value: it tells a
writer who does not know the outcome of its transaction that the value is its own.
"""

from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct, field

from warmlog_broker.replication.record import Author
from warmlog_protocol.errors import UnsupportedVersion, WarmlogError
from warmlog_protocol.messages import AclBinding
from warmlog_protocol.sasl.credential import Credential

FORMAT = 1
"""Of all values but the records, which have their own."""
FEATURE_LEVEL = 1
"""What brokers of this version can do that others rely on only once all can: it is the cluster's after
`warmlog cluster upgrade`, and an older broker is refused then."""


class Value(Struct, frozen=True, kw_only=True):
    v: int = FORMAT
    by: Author = Author()


class ClusterValue(Value, frozen=True, kw_only=True):
    created_ms: int
    generation: int = 0
    """How often the keys were rebuilt by `warmlog cluster recover`."""
    level: int = 0
    """The feature level: see FEATURE_LEVEL."""


class NodeValue(Value, frozen=True, kw_only=True):
    incarnation: int
    beat: int
    directories: list[str]
    rack: str = ""
    version: str = ""
    level: int = 0
    """The highest feature level that it can have."""


class Registration(Value, frozen=True, kw_only=True):
    """A broker that is alive."""

    uuid: str = ""
    """Of this registration."""
    endpoints: dict[str, tuple[str, int]]
    """Host and port by the names of listeners: what clients are told to connect to."""
    peer_listener: str
    """The one at which other brokers connect."""
    directories: list[str]
    rack: str = ""
    is_ready: bool = True
    """False while the broker hands over what it leads, to stop."""
    was_clean: bool = True
    """Whether it started after a clean stop."""
    has_room: bool = True
    """Whether its disks take records."""


class TopicValue(Value, frozen=True, kw_only=True):
    id: str
    partitions: int
    replication_factor: int
    settings: dict[str, str]
    is_internal: bool = False


class NameValue(Value, frozen=True, kw_only=True):
    name: str


class DeletedValue(Value, frozen=True, kw_only=True):
    name: str
    partitions: int
    deleted_ms: int


class OrderValue(Value, frozen=True, kw_only=True):
    """One of these is given, or the replicas and, until it is done, a recovery."""

    replicas: tuple[int, ...] | None = None
    """All replicas from now on, the preferred leader first."""
    leader: int | None = None
    """The member of the in-sync set that shall lead."""
    recover: int | None = None
    """The replica that shall lead although committed records may be lost."""
    nonce: str = ""
    """Names that recovery."""


class DrainedValue(Value, frozen=True, kw_only=True):
    since_ms: int


class ProducerIdsValue(Value, frozen=True, kw_only=True):
    next: int


class SettingsValue(Value, frozen=True, kw_only=True):
    settings: dict[str, str]


class UserValue(Value, frozen=True, kw_only=True):
    credentials: list[Credential]
    is_token: bool
    changed_ms: int
    previous: list[Credential] = field(default_factory=list)
    previous_end_ms: int = -1


class SecretValue(Value, frozen=True, kw_only=True):
    secret: bytes

    def __repr__(self) -> str:
        return "SecretValue(…)"


class RulesValue(Value, frozen=True, kw_only=True):
    rules: list[AclBinding]


class QuotaValue(Value, frozen=True, kw_only=True):
    limits: dict[str, int]


AnyValue = TypeVar("AnyValue", bound=Value)


class Keys:
    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.prefix = f"/warmlog/{cluster_id}/"
        self.cluster = f"{self.prefix}cluster"
        self.broker_prefix = f"{self.prefix}brokers/"
        """What the keys of all registrations begin with."""
        self.records = f"{self.prefix}partitions/"
        """What the keys of all records begin with."""
        self.producer_ids = f"{self.prefix}producer_ids"
        self.settings = f"{self.prefix}settings"
        self.user_secret = f"{self.prefix}user_secret"

    def node(self, node: int) -> str:
        return f"{self.prefix}nodes/{node}"

    def broker(self, node: int) -> str:
        return f"{self.broker_prefix}{node}"

    def topic(self, name: str) -> str:
        return f"{self.prefix}topics/{name}"

    def folded(self, name: str) -> str:
        return f"{self.prefix}names/{name.replace('.', '_')}"

    def partitions(self, topic_id: bytes) -> str:
        """Return what the keys of a topic's records begin with."""
        return f"{self.records}{topic_id.hex()}/"

    def partition(self, topic_id: bytes, number: int) -> str:
        return f"{self.partitions(topic_id)}{number}"

    def orders(self, topic_id: bytes) -> str:
        """Return what the keys of the orders for a topic's partitions begin with."""
        return f"{self.prefix}orders/{topic_id.hex()}/"

    def order(self, topic_id: bytes, number: int) -> str:
        return f"{self.orders(topic_id)}{number}"

    def drained(self, node: int) -> str:
        return f"{self.prefix}drained/{node}"

    def deleted(self, topic_id: bytes) -> str:
        return f"{self.prefix}deleted/{topic_id.hex()}"

    def user(self, name: str) -> str:
        return f"{self.prefix}users/{quoted(name)}"

    def rules(self, rule: AclBinding) -> str:
        return f"{self.prefix}acls/{rule.resource_type}/{quoted(rule.name)}"

    def quota(self, user: str | None, client_id: str | None) -> str:
        return f"{self.prefix}quotas/{quoted(user)}/{quoted(client_id)}"

    def parts(self, key: str) -> tuple[str, ...]:
        """Return the parts of a key after the prefix."""
        return tuple(key.removeprefix(self.prefix).split("/"))


def quoted(name: str | None) -> str:
    """Return a name as a part of a key: `=` and the quoted name, or nothing for None."""
    return "" if name is None else f"={quote(name, safe='')}"


def unquoted(part: str) -> str | None:
    """Return the name that `quoted` made a part of."""
    return unquote(part[1:]) if part else None


def to_bytes(value: Value) -> bytes:
    return msgspec.json.encode(value)


def from_bytes(key: str, value: bytes, kind: type[AnyValue]) -> AnyValue:
    """Read a value. UnsupportedVersion or WarmlogError, which name the key, if that cannot be done."""
    try:
        found: Any = msgspec.json.decode(value)
        version = found["v"]
        if version != FORMAT:
            raise UnsupportedVersion(
                f"{key} in etcd has version {version}, this broker reads {FORMAT}: a later warmlog has written it, so "
                "upgrade this broker"
            )
        return msgspec.convert(found, kind)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise WarmlogError(f"{key} in etcd cannot be read ({error}): {value[:200]!r}") from None


class _Authored(Struct):
    by: Author = Author()


def author_of(value: bytes) -> Author:
    """Return who wrote a value; `Author()` if that is not known."""
    try:
        return msgspec.json.decode(value, type=_Authored).by
    except msgspec.MsgspecError:
        return Author()
