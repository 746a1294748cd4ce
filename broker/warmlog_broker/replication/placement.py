"""Which brokers get the replicas of a new topic."""

from collections.abc import Mapping
from itertools import zip_longest

from warmlog_broker.replication.record import Nodes, PartitionRecord
from warmlog_protocol.errors import InvalidReplicationFactor


def place(racks: Mapping[int, str], *, partitions: int, factor: int, first: int = 0) -> list[Nodes]:
    """Return the replicas of each partition, the preferred leader first.

    `racks` has the rack of each broker that is ready, "" if it has none: each is a rack of its own then. Replicas are
    in as many racks as there are, leaders and replicas spread evenly over the brokers. `first` is where the round
    begins, so that many small topics spread, too. InvalidReplicationFactor if there are too few brokers.
    """
    if not 1 <= factor <= len(racks):
        raise InvalidReplicationFactor(f"{factor} replicas: expected 1 to {len(racks)}, as many brokers are ready")
    # Neighbours are in different racks, as far as possible
    groups: dict[str, list[int]] = {}
    for node in sorted(racks):
        groups.setdefault(racks[node] or f"\0{node}", []).append(node)
    by_size = sorted(groups.values(), key=len, reverse=True)
    order = [node for row in zip_longest(*by_size) for node in row if node is not None]
    return [_replicas(order, racks, first + partition, factor) for partition in range(partitions)]


def grown(record: PartitionRecord, racks: Mapping[int, str], factor: int, load: Mapping[int, int]) -> Nodes:
    """Return the replicas of a partition with others added until it has `factor`, or is on all brokers of `racks`.

    Racks without a replica come first, then brokers with the least `load`, replicas that they have.
    """
    chosen = list(record.replicas)
    while len(chosen) < factor and (left := [node for node in racks if node not in chosen]):
        used = {racks[node] for node in chosen if node in racks} - {""}
        chosen.append(min(left, key=lambda node: (racks[node] in used, load.get(node, 0), node)))
    return tuple(chosen)


def _replicas(order: list[int], racks: Mapping[int, str], number: int, factor: int) -> Nodes:
    """Return the replicas of one partition: each begins one further, and each whole round adds a gap."""
    rounds, at = divmod(number, len(order))
    leader, rest = order[at], order[at + 1 :] + order[:at]
    shift = rounds % len(rest) if rest else 0
    chosen, used = [leader], {racks[leader]} - {""}
    candidates = rest[shift:] + rest[:shift]
    for is_strict in (True, False):
        for node in candidates:
            if len(chosen) < factor and node not in chosen and not (is_strict and racks[node] in used):
                chosen.append(node)
                used |= {racks[node]} - {""}
    return tuple(chosen)
