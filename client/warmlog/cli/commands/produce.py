"""`warmlog produce`: send the lines of standard input, or one value, as records."""

import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from warmlog.cli.terminal import options
from warmlog.cli.terminal.exits import CommandFailed, checked, describe
from warmlog.cli.terminal.output import note
from warmlog.texts import is_encodable

if TYPE_CHECKING:
    from warmlog.cli.terminal.records import Parcel
    from warmlog.records.batch import Header

TABLES = ("csv", "parquet")
MAX_ROUND_BYTES = 1024 * 1024
"""How much is sent at once, and so the most that is unacknowledged after an error."""

Parse = Callable[[Sequence[bytes], int], "Sequence[Parcel]"]
"""Makes records of some lines; the second argument is how many lines were before."""


@click.command()
@options.topic_argument
@click.option(
    "--format",
    "input_format",
    type=click.Choice(["raw", "json", *TABLES]),
    default="raw",
    help="What a line is, or that stdin is a table.",
)
@click.option("--key-column", metavar="NAME", help="Of a table: the column of the keys.")
@click.option(
    "--timestamp-column", metavar="NAME", help="Of a table: the column of the timestamps, milliseconds or times."
)
@click.option("--partition-column", metavar="NAME", help="Of a table: the column of the partitions' numbers.")
@click.option("--text", "is_text", is_flag=True, help="Of csv: leave all columns as text, numbers too.")
@click.option("--value", metavar="TEXT", help="Send this value, and read nothing from standard input.")
@click.option("--key", "-k", metavar="TEXT", help="The key of every record.")
@click.option("--key-separator", metavar="TEXT", help="Separator between key and value of a line, such as : or \\t.")
@click.option(
    "--header",
    "-H",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of every record; NAME alone is null. Repeatable.",
)
@click.option(
    "--timestamp", metavar="TIME|MS", help="The timestamp of every record; a TIME without UTC offset is local time."
)
@click.option(
    "--null-empty",
    "-Z",
    "is_empty_null",
    is_flag=True,
    help="Empty values and keys are null; a null value deletes its key when compacted.",
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    help="When a record counts as sent: on disk (all), received (1), handed over (0).",
)
@options.compression_option
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="The partition of every record; chosen by key, or by the JSON line.",
)
@click.option("--by-key", is_flag=True, help="Let keys choose the partitions, whatever the JSON lines say.")
@click.option(
    "--expired",
    type=click.Choice(["warn", "error", "accept"]),
    default="warn",
    help="What happens to records that are older than retention.ms of the topic: the broker deletes them soon.",
)
@options.client_options
def produce(
    topic: str,
    input_format: str,
    key_column: str | None,
    timestamp_column: str | None,
    partition_column: str | None,
    is_text: bool,
    value: str | None,
    key: str | None,
    key_separator: str | None,
    header: tuple[str, ...],
    timestamp: str | None,
    is_empty_null: bool,
    acks: str,
    compression: str,
    partition: int | None,
    by_key: bool,
    expired: Literal["warn", "error", "accept"],
) -> None:
    """Send the lines of standard input as records, or one record with --value.

    \b
        raw     each line is a value; --key-separator begins it with a key;
                --key, --header and --timestamp apply to every line; an empty
                line is a record with an empty value
        json    each line is an object as consume --format json prints it, with
                "value" and, if wanted, "key", "headers", "timestamp_ms",
                "partition" and the "…_encoding" marks of base64; "topic",
                "offset" and "timestamp_type" have no effect
        csv     a header and rows, each of which becomes a JSON object
        parquet the same, from a file: < rows.parquet

    Of a table, the columns of --key-column, --timestamp-column and
    --partition-column are left out of the value.

    A copy with keys, headers, timestamps and partitions (topic copy does the same):

    \b
        consume a --committed --to latest --format json |
          produce b --format json

    Sending stops at the first record that fails.
    """
    of_tables = {
        "--key-column": key_column,
        "--timestamp-column": timestamp_column,
        "--partition-column": partition_column,
        "--text": is_text,
    }
    if input_format not in TABLES:
        _refuse("this is for --format csv or parquet", **of_tables)
    if input_format != "raw":
        plain = {
            "--value": value,
            "--key": key,
            "--key-separator": key_separator,
            "--header": header or None,
            "--timestamp": timestamp,
            "--null-empty": is_empty_null,
        }
        what = "lines have fields" if input_format == "json" else "tables have columns"
        _refuse(f"the {what} for that", **plain)
        _refuse("give a partition, or let keys choose", **{"--by-key": by_key and partition is not None})
    parse: Parse | None = None
    if input_format in TABLES:
        _refuse(
            "give a partition, or its column", **{"--partition": partition_column is not None and partition is not None}
        )
        _refuse("without --partition-column, keys choose anyway", **{"--by-key": by_key})
        _refuse("tables are sent with acks=all", **{"--acks": acks != "all"})
    elif input_format == "json":
        from warmlog.cli.terminal.json_records import read_json

        parse = partial(read_json, partition=partition, by_key=by_key)
    else:
        _refuse("without --format json, keys choose anyway", **{"--by-key": by_key})
        _refuse("--key is the key of every record", **{"--key-separator": key is not None and key_separator})
        parse = LineFormat(
            None if key is None else _bytes(key),
            None if key_separator is None else checked("--key-separator", parse_separator, key_separator),
            [checked("--header", parse_header, text) for text in header],
            None if timestamp is None else checked("--timestamp", parse_timestamp_ms, timestamp),
            is_empty_null=is_empty_null,
            partition=partition,
        ).parcels

    from warmlog.cli.terminal.status import Progress

    broker = options.chosen_broker()
    progress = Progress(
        shows_status=value is None and sys.stderr.isatty() and not sys.stdin.isatty(),
        total_bytes=None if value is not None or parse is None else _left_in_file(sys.stdin.fileno()),
    )

    async def run_table() -> None:
        from warmlog.arrow_write.producer import ArrowProducer
        from warmlog.cli.terminal.table_input import TableColumns, read_tables, records_of, send_tables
        from warmlog_protocol.codec.compression import Codec
        from warmlog_transport.options import connection_options

        columns = TableColumns(key_column, timestamp_column, partition_column, is_text)
        to_broker = connection_options(options.connection(), ArrowProducer)
        async with ArrowProducer(broker, to_broker, codec=Codec[compression.upper()]) as producer:
            options.show_warnings()
            tables = read_tables(input_format, sys.stdin.fileno(), columns)
            rows_of = partial(records_of, columns=columns, partition=partition)
            await send_tables(producer, topic, tables, rows_of, expired, progress)

    async def run() -> None:
        from warmlog import Producer
        from warmlog.cli.terminal.records import send_parcels, sending

        async with sending(
            Producer(broker, acks=acks, compression=compression, expired=expired, **options.connection())
        ) as producer:
            options.show_warnings()
            if value is None and sys.stdin.isatty():
                note(f"one record a line to {topic}; Ctrl-D ends")
            assert parse is not None
            lines_before = 0
            async for lines in _lines() if value is None else _one(_bytes(value)):
                await send_parcels(producer, topic, parse(lines, lines_before), sum(map(len, lines)), progress)
                lines_before += len(lines)

    try:
        options.run_client(run_table if parse is None else run, is_bulk=True)
    except Exception as error:
        progress.clear()
        is_from_line = input_format == "json" and partition is None and "has partition" in str(error)
        advice = " (--by-key lets keys choose)" if is_from_line else ""
        reason = describe(error).replace(" on any topic", f" on topic {topic!r}")  # asked before the topic is named
        done = "acknowledged" if parse is not None else "sent, of which the last may be missing,"
        message = f"{reason}{advice}; {progress.counted_records()} {done} before that"
        raise CommandFailed(message) from error
    progress.clear()
    document = {"topic": topic, "acks": acks, "compression": compression, **progress.figures()}
    options.print_result(document, lambda: note(f"{progress.summary()} to {topic}, acks={acks}"))


def _refuse(why: str, **given: object) -> None:
    """Raise a usage error for the first of these options that was given."""
    for name, value in given.items():
        if value not in (None, False):
            raise click.BadParameter(why, param_hint=name)


async def _lines() -> AsyncIterator[list[bytes]]:
    """Yield the input in rounds, each with the lines that arrived during the one before."""
    from warmlog.cli.terminal.lines import LineSplitter, read_rounds

    splitter = LineSplitter()
    async for chunk in read_rounds(sys.stdin.fileno(), MAX_ROUND_BYTES):
        lines = splitter.feed(chunk) if chunk else splitter.finish()
        if lines:
            yield lines


async def _one(value: bytes) -> AsyncIterator[list[bytes]]:
    yield [value]


def _left_in_file(descriptor: int) -> int | None:
    """Return how many bytes of a regular file are still to be read; None for anything else."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        return status.st_size - os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:
        return None


def _bytes(text: str) -> bytes:
    """Return the bytes of an argument as the shell passed them."""
    return text.encode("utf-8", errors="surrogateescape")


# --- lines as records -----------------------------------------------------------------------------------------------


class LineFormat(NamedTuple):
    """How a line becomes a record."""

    key: bytes | None
    separator: bytes | None
    headers: "Sequence[Header]"
    timestamp_ms: int | None
    is_empty_null: bool
    partition: int | None

    def parcels(self, lines: Sequence[bytes], lines_before: int) -> "Sequence[Parcel]":
        """Return the records of `lines`. CommandFailed for a line without a separator."""
        from warmlog.cli.terminal.records import Parcel

        keys: Sequence[bytes | None] | None = None
        values: Sequence[bytes | None] = lines
        if self.separator is not None:
            keys, values = split_keys(lines, self.separator, lines_before)
        elif self.key is not None:
            keys = [self.key] * len(lines)
        if self.is_empty_null:
            keys, values = keys and [key or None for key in keys], [value or None for value in values]
        headers = [self.headers] * len(lines) if self.headers else None
        return [Parcel(values, keys, self.timestamp_ms, headers, self.partition)]


def parse_separator(text: str) -> bytes:
    """Return the bytes of a key separator; ValueError if it is empty, has a newline or an unknown escape."""
    from warmlog.cli.terminal.formats import unescape

    separator = unescape(text)
    if not separator or b"\n" in separator:
        raise ValueError(f"{text!r} cannot separate key and value: give some text without a newline")
    return separator


def parse_header(text: str) -> "Header":
    """Return name and value of NAME=VALUE; NAME alone has the value null. ValueError without a name."""
    name, equals, value = text.partition("=")
    if not name or not is_encodable(name):
        raise ValueError(f"{text!r} is not NAME=VALUE, such as source=import, with a name in UTF-8")
    return name, _bytes(value) if equals else None


def parse_timestamp_ms(text: str) -> int:
    """Return milliseconds since 1970; ValueError unless `text` is that number or a time."""
    if text.isascii() and text.isdigit():
        return int(text)
    from warmlog.cli.terminal.times import parse_time_ms

    return parse_time_ms(text)


def split_keys(lines: Sequence[bytes], separator: bytes, lines_before: int) -> tuple[list[bytes], list[bytes]]:
    """Return keys and values of `lines`, split at the first separator. CommandFailed for a line without one."""
    keys, values = [], []
    for number, line in enumerate(lines, start=lines_before + 1):
        key, found, value = line.partition(separator)
        if not found:
            shown = separator.decode(errors="backslashreplace")
            raise CommandFailed(f"line {number} has no separator {shown!r} between key and value")
        keys.append(key)
        values.append(value)
    return keys, values
