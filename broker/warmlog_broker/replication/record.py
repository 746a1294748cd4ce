"""The record of one partition, on which the brokers of a cluster agree, and the only function that makes the next one.

The value in the store is a JSON object, which operators can read there::

    {"v": 1, "leader": 2, "leader_epoch": 7, "replicas": [1, 2, 3], "isr": [2, 3], "min_isr": 2, "elr": [],
     "last_known_elr": [], "adding": [], "removing": [], "recovering": "", "by": [2, 14, 31]}

All but `v`, `leader`, `leader_epoch`, `replicas` and `isr` may be missing. Fields that this version does not know are
kept and written again, so a newer broker's fields survive a change by an older one. Each change is conditional on the
store's revision of the value.

Who may change it: a candidate elects itself; the leader changes the in-sync set, hands over and reassigns; a broker
excludes itself. The rules of the eligible replicas (KIP-966) are applied by `changed` alone.
"""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from warmlog_protocol.errors import ApiError, FencedLeaderEpoch, InvalidRequest, UnsupportedVersion, WarmlogError

NO_LEADER = -1
VERSION = 1

Nodes = tuple[int, ...]


class Author(NamedTuple):
    """Who wrote a record: a node, which of its incarnations, and the number of the change in that."""

    node: int = -1
    incarnation: int = 0
    number: int = 0


class PartitionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is agreed on about one partition."""

    leader: int
    """NO_LEADER if there is none."""
    leader_epoch: int
    """Rises with each change of `leader`, and when replicas leave."""
    replicas: Nodes
    """In the order of preference; with those in `adding` and `removing`."""
    isr: Nodes
    """Each member has flushed everything below the high watermark."""
    min_isr: int = 1
    """Nothing is committed with fewer members; see `required`."""
    elr: Nodes = ()
    """Replicas outside of `isr` that also have everything below the high watermark: empty if `isr` is large enough."""
    last_known_elr: Nodes = ()
    """Replicas that left `isr` or `elr` since they may have lost something, as long as `isr` is too small."""
    adding: Nodes = ()
    removing: Nodes = ()
    recovering: str = ""
    """Names the last election that may have lost committed records: each replica obeys it once, and cuts to agree."""
    by: Author = Author()
    unknown: dict[str, Any] = {}
    """Fields of a newer version."""

    @property
    def required(self) -> int:
        """How many members of `isr` it takes to commit. Replicas that are still being added do not count."""
        return min(self.min_isr, len(self.replicas) - len(self.adding))

    @property
    def eligible(self) -> frozenset[int]:
        """Who may be elected: each has all that is committed."""
        return frozenset(self.isr).union(self.elr)


class Elect(msgspec.Struct, frozen=True):
    """The author stands for election, and `dead` members leave. With a nonce in `recovering`, what is committed may be
    lost: by the word of an operator, or if no eligible replica is left."""

    dead: frozenset[int] = frozenset()
    recovering: str = ""


class Expand(msgspec.Struct, frozen=True):
    """The leader takes a replica into the in-sync set."""

    node: int


class Shrink(msgspec.Struct, frozen=True):
    """The leader takes replicas out of the in-sync set; if they have `lost` something, they are not eligible."""

    nodes: frozenset[int]
    lost: bool = False


class HandOver(msgspec.Struct, frozen=True):
    """The leader makes another member the leader."""

    to: int


class Exclude(msgspec.Struct, frozen=True):
    """The author says that it may have lost something: it is not eligible until a leader takes it in."""


class Restart(msgspec.Struct, frozen=True):
    """The author has started again, and leads no longer in the epoch in which it did before.

    Others go first, since they may have what it had not flushed, unless its stop closed the log.
    """

    was_closed: bool = False


class Withdraw(msgspec.Struct, frozen=True):
    """The author changes nothing, so that an earlier change of its own, which may be under way, cannot be applied."""


class SetMinIsr(msgspec.Struct, frozen=True):
    """The leader takes over the topic's setting."""

    min_isr: int


class Grow(msgspec.Struct, frozen=True):
    """The leader begins a reassignment to `target`: what is missing is added, nothing is removed yet."""

    target: Nodes


class Complete(msgspec.Struct, frozen=True):
    """The leader ends a reassignment: those in `removing` leave. It must have handed over if it is one of them."""


class Cancel(msgspec.Struct, frozen=True):
    """The leader ends a reassignment without its result: those in `adding` leave."""


Change = Elect | Withdraw | Expand | Shrink | HandOver | Exclude | Restart | SetMinIsr | Grow | Complete | Cancel


def changed(record: PartitionRecord, change: Change, by: Author) -> PartitionRecord | ApiError:
    """Return the record after a change by its author; the error says why it is refused."""
    if not isinstance(change, Elect | Withdraw | Exclude | Restart) and record.leader != by.node:
        return FencedLeaderEpoch(f"node {by.node} does not lead: {record.leader} does, in epoch {record.leader_epoch}")
    if by.node not in record.replicas:
        return InvalidRequest(f"node {by.node} is not one of the replicas {record.replicas}")
    after = _changed(record, change, by.node)
    return after if isinstance(after, ApiError) else replace(after, by=by)


def _changed(record: PartitionRecord, change: Change, author: int) -> PartitionRecord | ApiError:
    match change:
        case Elect():
            return _elected(record, change, author)
        case Withdraw():
            return record
        case Exclude():
            excluded = _with_isr(record, set(record.isr) - {author}, lost={author})
            return _led_by(excluded, NO_LEADER) if record.leader == author else excluded
        case Restart(was_closed):
            if record.leader != author:
                return InvalidRequest(f"node {author} did not lead")
            stays = was_closed or record.eligible == {author}
            return _led_by(record, author if stays else NO_LEADER)
        case Grow(target):
            return _grown(record, target)
        case Complete():
            return _completed(record)
        case Cancel():
            return _without(record, record.adding)
    return _changed_by_leader(record, change, author)


def _changed_by_leader(
    record: PartitionRecord, change: Expand | Shrink | HandOver | SetMinIsr, author: int
) -> PartitionRecord | ApiError:
    match change:
        case Expand(node):
            if node not in record.replicas:
                return InvalidRequest(f"node {node} is not one of the replicas {record.replicas}")
            return _with_isr(record, {*record.isr, node})
        case Shrink(nodes, lost):
            if author in nodes:
                return InvalidRequest(f"the leader {author} does not leave the in-sync set before it resigns")
            return _with_isr(record, set(record.isr) - nodes, lost=nodes if lost else frozenset())
        case HandOver(to):
            if to == author or to not in record.isr:
                return InvalidRequest(f"node {to} is the leader, or not in sync: the in-sync set is {record.isr}")
            return _led_by(record, to)
        case SetMinIsr(min_isr):
            return _with_isr(replace(record, min_isr=min_isr), record.isr)


def _elected(record: PartitionRecord, change: Elect, node: int) -> PartitionRecord | ApiError:
    if change.recovering:
        alone = replace(record, isr=(node,), elr=(), last_known_elr=(), recovering=change.recovering)
        return _led_by(alone, node)
    if node not in record.eligible:
        return InvalidRequest(f"node {node} is not eligible: {sorted(record.eligible)} are")
    isr = set(record.isr) - change.dead if node in record.isr else {node}
    return _led_by(_with_isr(record, isr | {node}), node)


def _led_by(record: PartitionRecord, leader: int) -> PartitionRecord:
    return replace(record, leader=leader, leader_epoch=record.leader_epoch + 1)


def _with_isr(record: PartitionRecord, isr: Iterable[int], *, lost: Collection[int] = ()) -> PartitionRecord:
    """Return the record with this in-sync set: who leaves it stays eligible only while nothing can be committed."""
    members = _ordered(record, isr)
    if len(members) >= record.required:
        return replace(record, isr=members, elr=(), last_known_elr=())
    eligible = record.eligible
    elr = eligible.difference(members, lost)
    last_known = eligible.intersection(lost).union(record.last_known_elr).difference(members, elr)
    return replace(record, isr=members, elr=_ordered(record, elr), last_known_elr=_ordered(record, last_known))


def _ordered(record: PartitionRecord, nodes: Iterable[int]) -> Nodes:
    wanted = set(nodes)
    return tuple(node for node in record.replicas if node in wanted)


def _grown(record: PartitionRecord, target: Nodes) -> PartitionRecord | ApiError:
    if not target or len(set(target)) < len(target):
        return InvalidRequest(f"{target}: expected one node or more, and each once")
    if record.adding or record.removing:
        return InvalidRequest("a reassignment is under way: cancel it first")
    adding = tuple(node for node in target if node not in record.replicas)
    removing = tuple(node for node in record.replicas if node not in target)
    return replace(record, replicas=(*target, *removing), adding=adding, removing=removing)


def _completed(record: PartitionRecord) -> PartitionRecord | ApiError:
    staying = [node for node in record.isr if node not in record.removing]
    if record.leader not in staying or set(record.adding).difference(record.isr):
        return InvalidRequest("the replicas that are added are not in sync, or the leader is one that leaves")
    if len(staying) < min(record.min_isr, len(record.replicas) - len(record.removing)):
        return InvalidRequest(f"only {staying} of the replicas that stay are in sync: {record.min_isr} must be")
    return _without(replace(record, adding=()), record.removing)


def _without(record: PartitionRecord, leaving: Nodes) -> PartitionRecord | ApiError:
    """Return the record without these replicas. They remove their logs, so another epoch begins: what the leader knows
    of them would count if they came back in the same one."""
    if record.leader in leaving:
        return InvalidRequest(f"the leader {record.leader} is one that leaves: it hands over first")
    replicas = tuple(node for node in record.replicas if node not in leaving)
    last_known = tuple(node for node in record.last_known_elr if node not in leaving)
    rest = replace(record, replicas=replicas, adding=(), removing=(), last_known_elr=last_known)
    after = _with_isr(rest, set(rest.isr).difference(leaving), lost=leaving)
    return _led_by(after, record.leader) if leaving else after


_KNOWN = tuple(name for name in PartitionRecord.__struct_fields__ if name != "unknown")


def to_bytes(record: PartitionRecord) -> bytes:
    return msgspec.json.encode({"v": VERSION, **{name: getattr(record, name) for name in _KNOWN}, **record.unknown})


def from_bytes(value: bytes) -> PartitionRecord:
    """Read a value of the store. UnsupportedVersion or WarmlogError if it cannot be read."""
    try:
        fields = msgspec.json.decode(value, type=dict[str, Any])
        if (version := fields.pop("v", None)) != VERSION:
            raise UnsupportedVersion(
                f"a partition record of version {version}, this broker reads {VERSION}: a later warmlog has written "
                "it, so upgrade this broker"
            )
        known = {name: fields.pop(name) for name in _KNOWN if name in fields}
        record = msgspec.convert(known, PartitionRecord)
    except msgspec.MsgspecError as error:
        raise WarmlogError(f"a partition record cannot be read ({error}): {value[:200]!r}") from None
    replicas = set(record.replicas)
    groups = (record.isr, record.elr, record.last_known_elr, record.adding, record.removing)
    is_right = (
        all(replicas.issuperset(nodes) for nodes in groups)
        and set(record.isr).isdisjoint(record.elr)
        and record.leader in (*record.isr, NO_LEADER)
        and record.min_isr >= 1
    )
    if not is_right:
        raise WarmlogError(f"a partition record contradicts itself: {record}")
    return replace(record, unknown=fields)
