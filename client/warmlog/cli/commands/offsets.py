"""`warmlog offsets`: the first and last offsets of a topic's partitions, and those at a time."""

import click

from warmlog.cli.terminal.exits import CommandFailed, checked
from warmlog.cli.terminal.options import client_options, partition_option, print_result, run_admin, topic_argument
from warmlog.cli.terminal.output import is_terminal, line, note, table
from warmlog.cli.terminal.tables import Instant


@click.command()
@topic_argument
@click.option(
    "--at",
    default="latest",
    metavar="earliest|latest|-1h|TIME",
    help="A TIME is like 2013-07-01T00:00; without UTC offset it is local time.",
)
@partition_option
@client_options
def offsets(topic: str, at: str, partition: int | None) -> None:
    """Show an offset of each partition.

    earliest is the first record that is kept, latest the end of the durable records, a TIME the first record at or
    after it, or the end if there is none. Plain output is topic:partition:offset, one a line, as Kafka's tool prints
    it. Offline partitions are left out, and then the command fails.
    """
    from warmlog.cli.terminal.times import nothing_after, parse_edge_or_time

    point = checked("--at", parse_edge_or_time, at)
    partitions = None if partition is None else [partition]
    by_partition = run_admin(lambda admin: admin.look_up_offsets(topic, point, partitions), warns=True)
    results = [result for _, result in sorted(by_partition.items())]
    errors = [result for result in results if isinstance(result, Exception)]
    found = [result for result in results if not isinstance(result, Exception)]

    def say() -> None:
        if is_terminal():
            rows = [(offset.partition, offset.offset, Instant(offset.timestamp_ms)) for offset in found]
            table(("partition", "offset", "timestamp"), rows)
        else:
            for offset in found:
                line(f"{topic}:{offset.partition}:{offset.offset}")

    print_result([{"topic": topic, **offset._asdict()} for offset in found], say)
    if isinstance(point, int) and found and all(offset.timestamp_ms < 0 for offset in found):
        note(nothing_after(point))
    if errors:
        raise CommandFailed("; ".join(map(str, errors)))
