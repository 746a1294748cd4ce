"""`warmlog cluster init`, `elect`, `reassign`, `drain`, `replace` and `upgrade`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.commands.cluster.access import Place, cluster_options, in_cluster, in_etcd, names_of, partitions_of
from warmlog.cli.terminal.exits import CommandFailed, confirm
from warmlog.cli.terminal.options import certain_option, print_result
from warmlog.cli.terminal.output import counted, line, note
from warmlog.cli.terminal.paths import DIRECTORY
from warmlog.cli.terminal.status import Status

if TYPE_CHECKING:
    from warmlog_broker.cluster.keys import OrderValue
    from warmlog_broker.cluster.records import PartitionKey
    from warmlog_broker.cluster.view import View
    from warmlog_broker.etcd.client import EtcdClient

POLL_S = 0.2
REACTION_S = 30.0
"""A broker that is registered, and takes longer to react to what is wanted of it, does not follow etcd."""
HANDOVER_S = 10.0
"""How long a drained broker may lead something still before that is reported."""

topic_argument = click.argument("topic", metavar="TOPIC", help="The topic's name.")
partition_argument = click.argument(
    "partition", type=click.IntRange(min=0), required=False, metavar="[PARTITION]", help="One of its partitions; all."
)
node_argument = click.argument("node", type=click.IntRange(min=0), metavar="NODE", help="The broker's node.id.")
wait_option = click.option(
    "--wait", "wait_s", type=click.IntRange(min=0), default=600, metavar="SECONDS", help="How long to wait for the end."
)


@click.command()
@click.option(
    "--data-dir",
    type=DIRECTORY,
    metavar="DIR",
    help="Of a stopped broker that was alone, the first of its directories: its topics, users and rights are taken.",
)
@click.option("--dry-run", is_flag=True, help="With --data-dir: show what would be taken over, and change nothing.")
@click.option("--if-not-exists", is_flag=True, help="Leave a cluster that exists as it is, without an error.")
@cluster_options
def init(data_dir: Path | None, dry_run: bool, if_not_exists: bool, place: Place) -> None:
    """Create a cluster in etcd, once, before its first broker is started.

    With --data-dir the cluster gets the id that the broker has had; start it with that as its cluster.id. A directory
    that has no topics, but users and rights, gives these to a new cluster with any --cluster-id.
    """
    from warmlog_broker.tools.cluster import init as work

    if data_dir is None:
        if dry_run or not place.cluster_id:
            raise click.UsageError("give --cluster-id NAME, or --data-dir DIR of a broker that becomes the first")
        cluster_id = place.cluster_id
        shown: dict[str, object] = {"cluster_id": cluster_id}
        said = f"created cluster {cluster_id}; its brokers start with cluster.id={cluster_id}"
        is_new = _create(place, lambda etcd: work.create_cluster(etcd, cluster_id), if_not_exists=if_not_exists)
    else:
        state, found = work.read_broker(data_dir)
        cluster_id = place.cluster_id or found.cluster_id
        if found.topics and cluster_id != found.cluster_id:
            raise CommandFailed(
                f"the broker's cluster id is {found.cluster_id}: a cluster that takes it over has the same"
            )
        shown = {**found._asdict(), "cluster_id": cluster_id, "is_done": not dry_run}
        said = (
            f"{counted(found.topics, 'topic')} with {counted(found.partitions, 'partition')}, "
            f"{counted(found.users, 'user')} and {counted(found.rules, 'rule')} "
            f"{'would be' if dry_run else 'were'} taken over; start the broker with cluster.id={cluster_id}"
        )
        if cluster_id == found.cluster_id:
            said += f" and node.id={found.node}. Each partition has one replica: `warmlog cluster reassign` adds others"
        is_new = dry_run or _create(
            place, lambda etcd: work.take_over(etcd, state, cluster_id), if_not_exists=if_not_exists
        )
    print_result(shown, lambda: line(said if is_new else f"cluster {cluster_id} exists"))


def _create(place: Place, create: "Callable[[EtcdClient], Awaitable[None]]", *, if_not_exists: bool) -> bool:
    """Return whether the cluster was created; False if it exists, and may."""
    from warmlog_protocol.errors import DuplicateResource

    try:
        in_etcd(place, create)
    except DuplicateResource:
        if not if_not_exists:
            raise
        return False
    return True


@click.command()
@click.argument("topic", metavar="[TOPIC]", required=False, help="The topic's name; all topics with --preferred.")
@partition_argument
@click.option("--preferred", is_flag=True, help="Let the first replica of each partition lead, if it is in sync.")
@click.option("--leader", type=click.IntRange(min=0), metavar="NODE", help="The member of the in-sync set to lead.")
@click.option(
    "--unclean",
    type=click.IntRange(min=0),
    metavar="NODE",
    help="The replica to lead a partition without a leader, although records that were acknowledged may be lost.",
)
@wait_option
@certain_option
@cluster_options
def elect(
    topic: str | None,
    partition: int | None,
    preferred: bool,
    leader: int | None,
    unclean: int | None,
    wait_s: int,
    is_certain: bool,
    place: Place,
) -> None:
    """Change the leaders of partitions: to the preferred ones, or to one of the in-sync set."""
    if (leader is not None) + (unclean is not None) + preferred != 1 or (topic is None and not preferred):
        raise click.UsageError("give one of --preferred, --leader NODE and --unclean NODE, and a topic for the latter")
    if unclean is not None:
        confirm(
            f"Records that only other replicas have are lost for good. Let broker {unclean} lead?",
            "the partitions wait for a replica that has all records",
            is_certain=is_certain,
        )

    def wanted_in(view: "View") -> "dict[PartitionKey, OrderValue]":
        from warmlog_broker.cluster import operating
        from warmlog_broker.cluster.keys import OrderValue
        from warmlog_protocol.errors import ElectionNotNeeded, PreferredLeaderNotAvailable

        keys = list(view.records) if topic is None else partitions_of(view, topic, partition)
        if preferred:
            found: dict[PartitionKey, OrderValue] = {}
            for key in keys:
                with suppress(ElectionNotNeeded, PreferredLeaderNotAvailable):
                    found[key] = operating.election(view, key)
            return found
        leaders = {key: view.records[key].record.leader for key in keys}
        if unclean is not None:
            return {key: OrderValue(recover=unclean) for key, now in leaders.items() if now not in view.brokers}
        return {key: OrderValue(leader=leader) for key, now in leaders.items() if now != leader}

    _carry_out(place, wanted_in, "another leader", wait_s=wait_s)


@click.command()
@topic_argument
@partition_argument
@click.option(
    "--replicas", required=True, metavar="NODE,…", help="The brokers that have it afterwards; the first is to lead."
)
@wait_option
@cluster_options
def reassign(topic: str, partition: int | None, replicas: str, wait_s: int, place: Place) -> None:
    """Move partitions to other brokers, or give them more or fewer replicas.

    New replicas are filled while the others serve; those that leave go once all that stay are in sync.
    """
    try:
        nodes = tuple(int(node) for node in replicas.split(","))
    except ValueError:
        problem = f"{replicas!r} is not a list of node ids, such as 1,2,3"
        raise click.BadParameter(problem, param_hint="--replicas") from None
    if len(set(nodes)) != len(nodes):
        raise click.BadParameter(f"{replicas!r} names a broker twice", param_hint="--replicas")

    def wanted_in(view: "View") -> "dict[PartitionKey, OrderValue]":
        from warmlog_broker.cluster.keys import OrderValue

        keys = partitions_of(view, topic, partition)
        return {key: OrderValue(replicas=nodes) for key in keys if view.records[key].record.replicas != nodes}

    _carry_out(place, wanted_in, "other replicas", wait_s=wait_s)


@click.command()
@node_argument
@click.option("--undo", is_flag=True, help="Let the broker lead again.")
@cluster_options
def drain(node: int, undo: bool, place: Place) -> None:
    """Let a broker hand over what it leads, and lead nothing until --undo: before it is stopped for long."""

    async def ask(etcd: "EtcdClient", view: "View") -> int:
        from warmlog_broker.cluster import operating

        await operating.drain(etcd, view, node, is_drained=not undo)
        try:
            async with asyncio.timeout(REACTION_S):
                while (found := view.brokers.get(node)) is not None and found.value.is_ready != undo:
                    await view.moved()
        except TimeoutError:
            what = "may lead again" if undo else "leads nothing more"
            raise CommandFailed(
                f"broker {node} has not confirmed within {REACTION_S:g} s that it {what}. This is written in etcd, and "
                "the broker does it once it follows etcd again"
            ) from None
        with suppress(TimeoutError):
            async with asyncio.timeout(HANDOVER_S):
                while not undo and _led_by(view, node):
                    await view.moved()
        return _led_by(view, node)

    left = in_cluster(place, ask)
    others = f"; it leads {counted(left, 'partition')} still, of which no other replica is in sync" if left else ""
    said = f"broker {node} may lead again" if undo else f"broker {node} is drained{others}"
    print_result({"node": node, "is_drained": not undo, "leads": left}, lambda: line(said))


def _led_by(view: "View", node: int) -> int:
    return sum(seen.record.leader == node for seen in view.records.values())


@click.command()
@node_argument
@certain_option
@cluster_options
def replace(node: int, is_certain: bool, place: Place) -> None:
    """Let a broker start with new disks in the place of those it has lost: its replicas are filled again.

    The broker must be stopped. Partitions of which no other broker has all records wait for another replica: these
    are named first.
    """

    async def ask(etcd: "EtcdClient", view: "View") -> int:
        from warmlog_broker.cluster import operating

        names, alone = names_of(view), operating.alone_in(view, node)
        if alone and not is_certain:
            for key in alone:
                note(f"{names.get(key.topic_id, key.topic_id.hex())}-{key.number}: no other broker has all its records")
            confirm(f"Replace the disks of broker {node}?", "nothing was changed", is_certain=False)
        return await operating.exclude(etcd, view, node)

    count = in_cluster(place, ask)
    said = f"broker {node} may start with new disks: {counted(count, 'replica')} will be filled"
    print_result({"node": node, "replicas": count}, lambda: line(said))


@click.command()
@cluster_options
def upgrade(place: Place) -> None:
    """Raise the feature level to that of this version, once all brokers have it: older ones cannot start then."""

    async def ask(etcd: "EtcdClient", view: "View") -> tuple[int, int]:
        from warmlog_broker.cluster import operating

        before = view.level
        await operating.raise_level(etcd, view)
        return before, view.level

    before, level = in_cluster(place, ask)
    said = f"the feature level is {level}" + (f", it was {before}" if before != level else " already")
    print_result({"level": level, "was": before}, lambda: line(said))


def _carry_out(
    place: Place,
    wanted_in: "Callable[[View], Mapping[PartitionKey, OrderValue]]",
    what: str,
    *,
    wait_s: int,
) -> None:
    """Order what is wanted, and wait until all is carried out. CommandFailed if that takes too long: orders stay."""

    async def ask(etcd: "EtcdClient", view: "View") -> int:
        from warmlog_broker.cluster import operating

        wanted = wanted_in(view)
        for key, each in wanted.items():
            await operating.order(etcd, view, key, each)
        status = Status()
        try:
            async with asyncio.timeout(wait_s):
                while left := [key for key in wanted if key in view.orders]:
                    status.tell(f"{counted(len(left), 'partition')} to go")
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise CommandFailed(
                f"{counted(len(left), 'partition')} of {len(wanted)} are not done after {wait_s} s; the brokers go on, "
                "and `warmlog cluster status` shows how far they are"
            ) from None
        finally:
            status.clear()
        return len(wanted)

    count = in_cluster(place, ask)
    said = f"{counted(count, 'partition')} got {what}" if count else "nothing had to be changed"
    print_result({"partitions": count}, lambda: line(said))
