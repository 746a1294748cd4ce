"""`warmlog cluster status` and `brokers`."""

from typing import TYPE_CHECKING, NamedTuple

import click

from warmlog.cli.commands.cluster.access import Place, cluster_options, in_cluster, names_of
from warmlog.cli.terminal.options import print_result
from warmlog.cli.terminal.output import counted, facts, line, table
from warmlog.cli.terminal.tables import Cell

if TYPE_CHECKING:
    from warmlog_broker.cluster.records import PartitionKey
    from warmlog_broker.cluster.view import View
    from warmlog_broker.etcd.client import EtcdClient
    from warmlog_broker.replication.record import PartitionRecord

MOST_SHOWN = 50


@click.command()
@cluster_options
def status(place: Place) -> None:
    """Show the brokers of a cluster, and the partitions that are not as they should be.

    The exit code is 1 if a partition has no leader, or too few replicas in sync to take records with acks=all.
    """
    view = in_cluster(place, _look)
    wrong = _wrong_in(view)
    count = sum(topic.partitions for topic in view.state.topics.values())
    document = {
        "cluster_id": place.cluster_id,
        "revision": view.revision,
        "feature_level": view.level,
        "brokers": sorted(view.brokers),
        "topics": len(view.state.topics),
        "partitions": count,
        "not_as_they_should_be": [each._asdict() for each in wrong],
    }

    def say() -> None:
        away = [node for node in _known_nodes(view) if node not in view.brokers]
        facts(
            [
                ("cluster", place.cluster_id),
                ("brokers", ", ".join(map(str, sorted(view.brokers))) or "none"),
                *([("away", ", ".join(map(str, away)))] if away else []),
                ("feature level", str(view.level)),
                ("topics", f"{counted(len(view.state.topics), 'topic')}, {counted(count, 'partition')}"),
                ("partitions", f"{counted(len(wrong), 'needs', 'need')} attention" if wrong else "all in sync"),
            ]
        )
        if wrong:
            line()
            rows: list[tuple[Cell, ...]] = [(*each[:4], *map(_nodes, each[5:])) for each in wrong[:MOST_SHOWN]]
            table(("TOPIC", "PARTITION", "STATE", "LEADER", "REPLICAS", "IN SYNC", "ELIGIBLE"), rows)
        if len(wrong) > MOST_SHOWN:
            line(f"and {len(wrong) - MOST_SHOWN} more: --json has them all")

    print_result(document, say)
    raise SystemExit(any("no leader" in each.state or "too few" in each.state for each in wrong))


async def _look(_: "EtcdClient", view: "View") -> "View":
    return view


class _Wrong(NamedTuple):
    topic: str
    partition: int
    state: str
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    eligible: tuple[int, ...]


def _wrong_in(view: "View") -> list[_Wrong]:
    """Return the partitions that are not as they should be, by their topics' names."""
    names, found = names_of(view), []
    for key, (record, _) in view.records.items():
        if key.topic_id in names and (state := _state_of(view, key, record)):
            place = names[key.topic_id], key.number
            found.append(
                _Wrong(*place, state, record.leader, record.leader_epoch, record.replicas, record.isr, record.elr)
            )
    return sorted(found)


def _state_of(view: "View", key: "PartitionKey", record: "PartitionRecord") -> str:
    """Return what is wrong with a partition, or under way; "" if it is as it should be."""
    words = []
    if record.leader not in view.brokers:
        words.append("no leader")
    if len(record.isr) < record.required:
        words.append("too few in sync")
    elif set(record.isr) != set(record.replicas):
        words.append("not all in sync")
    if record.adding or record.removing:
        words.append("moving")
    elif key in view.orders:
        words.append("ordered")
    return ", ".join(words)


def _nodes(nodes: tuple[int, ...]) -> str:
    return ",".join(map(str, nodes)) or "-"


@click.command()
@cluster_options
def brokers(place: Place) -> None:
    """Show the brokers of a cluster: where they are, what they lead, and what they follow."""
    view = in_cluster(place, _look)
    rows = [_row(view, node) for node in _known_nodes(view)]
    headings = ("NODE", "STATE", "RACK", "LEADS", "IN SYNC", "REPLICAS", "ADDRESSES")
    cells = [(*row[:2], row.rack or "-", *row[3:6], _addresses(row.endpoints)) for row in rows]
    print_result([row._asdict() for row in rows], lambda: table(headings, cells))


class _BrokerRow(NamedTuple):
    node: int
    state: str
    rack: str
    leads: int
    in_sync: int
    replicas: int
    endpoints: dict[str, tuple[str, int]]


def _row(view: "View", node: int) -> _BrokerRow:
    value = None if node not in view.brokers else view.brokers[node].value
    of = [seen.record for seen in view.records.values() if node in seen.record.replicas]
    return _BrokerRow(
        node,
        "away" if value is None else "drained" if not value.is_ready else "ready" if value.has_room else "full",
        "" if value is None else value.rack,
        sum(record.leader == node for record in of),
        sum(node in record.isr for record in of),
        len(of),
        {} if value is None else value.endpoints,
    )


def _addresses(endpoints: dict[str, tuple[str, int]]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in endpoints.values()) or "-"


def _known_nodes(view: "View") -> list[int]:
    """Return the ids of all brokers that the cluster has had, but those that were replaced."""
    parts = map(view.keys.parts, view.items)
    return sorted(int(each[1]) for each in parts if each[0] == "nodes")
