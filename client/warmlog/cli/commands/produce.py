"""`warmlog produce`: send the lines of standard input as records."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.terminal.exits import CommandFailed, checked, describe, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, Topic, run_client, show_warnings
from warmlog.cli.terminal.output import json_line, note
from warmlog.cli.terminal.templates import unescape

if TYPE_CHECKING:
    from warmlog import Producer
    from warmlog.cli.terminal.status import Progress

MAX_ROUND_BYTES = 1024 * 1024
"""How much is sent at once, and so the most that is unacknowledged after an error."""


class Acks(StrEnum):
    """When a record counts as sent."""

    ALL = "all"
    ONE = "1"
    NONE = "0"


class Compression(StrEnum):
    """What batches are compressed with."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


@ends_cleanly
def produce(
    topic: Topic,
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What separates key and value, such as : or \\t; without it, no keys."),
    ] = None,
    acks: Annotated[
        Acks, typer.Option(help="When a record counts as sent: on disk (all), received (1), handed over (0).")
    ] = Acks.ALL,
    compression: Annotated[Compression, typer.Option(help="What batches are compressed with.")] = Compression.NONE,
    partition: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="The partition; chosen by key if not given.", show_default=False),
    ] = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Send the lines of standard input, one record a line.

    An empty line is a record with an empty value. Sending stops at the first record that fails.
    """
    separator = None if key_separator is None else checked("--key-separator", parse_separator, key_separator)

    from warmlog.cli.terminal.status import Progress

    progress = Progress(shows_status=sys.stderr.isatty() and not sys.stdin.isatty())

    async def run() -> None:
        from warmlog import Producer

        producer = await Producer(broker, acks=acks.value, compression=compression.value).start()
        show_warnings()
        await _send_lines(producer, topic, partition, separator, progress)
        # Not a context manager: after a failure or Ctrl-C the user does not want to wait for records in flight.
        await producer.close()

    try:
        run_client(run, is_bulk=True)
    except Exception as error:
        progress.clear()
        message = f"{describe(error)}; {progress.records:,} records were acknowledged before that"
        raise CommandFailed(message) from error
    progress.clear()
    if as_json:
        json_line({"topic": topic, "acks": acks.value, "compression": compression.value, **progress.figures()})
    else:
        note(f"{progress.summary()} to {topic}, acks={acks.value}")


async def _send_lines(
    producer: "Producer", topic: str, partition: int | None, separator: bytes | None, progress: "Progress"
) -> None:
    """Send the input in rounds, each with the lines that arrived during the one before."""
    from warmlog.cli.terminal.lines import LineSplitter, read_rounds

    splitter = LineSplitter()
    async for chunk in read_rounds(sys.stdin.fileno(), MAX_ROUND_BYTES):
        lines = splitter.feed(chunk) if chunk else splitter.finish()
        if not lines:
            continue
        keys, values = (None, lines) if separator is None else split_keys(lines, separator, progress.records)
        placed = await producer.send_many(topic, values, keys=keys, partition=partition)
        progress.add(placed.count, sum(map(len, lines)))


def parse_separator(text: str) -> bytes:
    """Return the bytes of a key separator; ValueError if it is empty, has a newline or an unknown escape."""
    separator = unescape(text)
    if not separator or b"\n" in separator:
        raise ValueError(f"{text!r} cannot separate key and value: give some text without a newline")
    return separator


def split_keys(lines: Sequence[bytes], separator: bytes, lines_before: int) -> tuple[list[bytes], list[bytes]]:
    """Return keys and values of `lines`, split at the first separator. CommandFailed for a line without one."""
    keys, values = [], []
    for number, line in enumerate(lines, start=lines_before + 1):
        key, found, value = line.partition(separator)
        if not found:
            raise CommandFailed(f"line {number} has no separator {separator!r} between key and value")
        keys.append(key)
        values.append(value)
    return keys, values
