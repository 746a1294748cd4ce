"""`warmlog cluster recover`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.commands.cluster.access import Place, cluster_options, in_etcd
from warmlog.cli.terminal.exits import confirm
from warmlog.cli.terminal.options import certain_option, wants_json
from warmlog.cli.terminal.output import counted, json_line, line, table
from warmlog.cli.terminal.paths import FILE_OR_DIRECTORY, NEW_FILE
from warmlog.cli.terminal.status import Status

if TYPE_CHECKING:
    from warmlog_broker.etcd.client import EtcdClient
    from warmlog_broker.tools.cluster.recover import Recovery, Source


@click.command()
@click.argument(
    "sources",
    type=FILE_OR_DIRECTORY,
    nargs=-1,
    required=True,
    metavar="SOURCE…",
    help="The first data directory of each broker, which is stopped, or files that --save has written.",
)
@click.option(
    "--save",
    type=NEW_FILE,
    metavar="FILE",
    help="Only write what these brokers have into a file, which has credentials: on each broker's machine.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be rebuilt and may be lost, and change nothing.")
@certain_option
@cluster_options
def recover(sources: tuple[Path, ...], save: Path | None, dry_run: bool, is_certain: bool, place: Place) -> None:
    """Rebuild the keys of a cluster whose etcd is lost, or was restored from an old backup.

    Stop all brokers, and give as many of them as there are. What may be lost is said before anything is changed.
    """
    from warmlog_broker.tools.cluster import recover as work

    status = Status()
    found = [source for path in sources for source in work.read_sources(path, status.tell)]
    status.clear()
    if save is not None:
        work.save_sources(save, found)
        line(f"{save}: {counted(len(found), 'broker')}, {counted(sum(len(each.logs) for each in found), 'log')}")
        return
    cluster_id = place.cluster_id or found[0].copy.cluster_id

    async def ask(etcd: "EtcdClient") -> "Recovery":
        from warmlog_broker.cluster.keys import Keys
        from warmlog_broker.cluster.view import View

        now = View(etcd, Keys(cluster_id), -1)
        await now.read()
        recovery = work.plan(found, now)
        if not wants_json():
            _tell(recovery, found)
        if not dry_run:
            confirm(f"Replace all that etcd has of {cluster_id}?", "nothing was changed", is_certain=is_certain)
            await work.rebuild(etcd, now, recovery)
        return recovery

    recovery = in_etcd(place, ask)
    if wants_json():
        missing = [dict(zip(("topic", "partition", "not_asked"), each, strict=True)) for each in recovery.missing]
        json_line({"cluster_id": cluster_id, "may_lack_records": missing, "is_done": not dry_run})
    elif not dry_run:
        line("the keys are rebuilt: start the brokers")


def _tell(recovery: "Recovery", found: "list[Source]") -> None:
    """Say what the keys will be, and what may be lost."""
    view, asked = recovery.view, ", ".join(str(node) for node in sorted(source.node for source in found))
    line(
        f"Of brokers {asked}, {view.node} has the newest copy of what etcd had, of revision {view.revision}: "
        f"{counted(len(view.state.topics), 'topic')}, {counted(len(recovery.records), 'partition')}, "
        f"{counted(len(view.state.users), 'user')}. What was changed in the second after it is lost, and orders of "
        "`elect` and `reassign` that were not carried out."
    )
    for path in [path for source in found for path in source.missing]:
        line(f"{path} is missing: what it has counts as not asked.")
    if not recovery.missing:
        line("All records that were acknowledged with acks=all are on these brokers.")
        return
    line(f"{counted(len(recovery.missing), 'partition')} may lack acknowledged records:")
    table(("TOPIC", "PARTITION", "NOT ASKED"), [(*each[:2], ",".join(map(str, each[2]))) for each in recovery.missing])
