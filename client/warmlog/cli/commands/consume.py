"""`warmlog consume`: print the records of a topic."""

from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.terminal.exits import CommandFailed, checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, Topic, run_client, show_warnings
from warmlog.cli.terminal.output import counted, note, write
from warmlog.cli.terminal.times import End, Start, note_if_past_end, parse_end, parse_start

if TYPE_CHECKING:
    from warmlog.cli.terminal.templates import BatchWriter

RAW, JSON = "raw", "json"

HELP = """Print the records of a topic, from --from to --to, or without end.

    raw        each value as it is, and a newline; null is an empty line
    json       one object a line; bytes that are not UTF-8 are base64, and "value_encoding" says so
    '%k %v'    a template: %t topic, %p partition, %o offset, %k key, %v value, %T timestamp in
               ISO 8601, %s timestamp in ms, %h headers, %% a percent sign; escapes are backslash
               and n, t, r, 0 or backslash; a newline follows unless it ends in one

Records of a partition come in order; partitions are interleaved as they arrive. Offsets that are lost or
damaged on the broker's disk are reported on stderr and skipped; then the exit code is 1."""


@ends_cleanly
def consume(
    topic: Topic,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|OFFSET|-N|-1h|TIME",
            help="Where to begin; a TIME without UTC offset is local time.",
        ),
    ] = "earliest",
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="latest|OFFSET|-N|-1h|TIME",
            help="Where to stop, exclusive; latest is the end as it is now.",
        ),
    ] = None,
    template: Annotated[
        str | None, typer.Option("--format", metavar="raw|json|TEMPLATE", help=f"What to print; {RAW} if not given.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only this partition.")] = None,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after so many records.")] = None,
    is_committed: Annotated[
        bool, typer.Option("--committed", help="Leave out aborted transactions, and wait for the end of open ones.")
    ] = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    first = checked("--from", parse_start, start)
    last = None if end is None else checked("--to", parse_end, end)
    if as_json and template not in (None, JSON):
        raise typer.BadParameter(f"--json and --format {template} contradict each other", param_hint="--json")

    from warmlog.cli.terminal.formats import batch_writer

    print_batch = checked("--format", batch_writer, JSON if as_json else template or RAW)
    isolation = "read_committed" if is_committed else "read_uncommitted"
    run_client(lambda: _consume(broker, topic, partition, first, last, isolation, count, print_batch), is_bulk=True)


async def _consume(
    broker: str,
    topic: str,
    partition: int | None,
    start: Start,
    end: End | None,
    isolation: str,
    count: int | None,
    format_batch: "BatchWriter",
) -> None:
    """Print batch by batch, with one write and one flush for each."""
    from warmlog import Consumer, UnreadableBatch

    topics = [topic] if partition is None else None
    partitions = None if partition is None else [(topic, partition)]
    show_warnings()
    unreadable = 0
    async with Consumer(broker, topics=topics, partitions=partitions, start=start, isolation=isolation) as consumer:
        await note_if_past_end(consumer, start)
        batches = consumer.batches(until=end)
        while count != 0:
            try:
                batch = await anext(batches, None)
                if batch is None:
                    break
                wanted = len(batch) if count is None else min(count, len(batch))
                write(format_batch(batch, wanted))
            except UnreadableBatch as error:
                unreadable += 1
                note(f"skipped: {error}")
                continue
            if count is not None:
                count -= wanted
    if unreadable:
        raise CommandFailed(f"{topic}: {counted(unreadable, 'range')} of offsets cannot be read")
