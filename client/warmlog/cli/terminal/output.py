"""Output of commands: data on stdout, everything else on stderr.

On a terminal rich draws the tables. Elsewhere they are plain text for scripts: a line for each row, fields separated by
tabs, headings in the first line.
"""

import os
import sys
from collections.abc import Sequence

Cell = str | int


class OutputClosed(Exception):
    """The reader of stdout has closed it."""


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def write(data: bytes) -> None:
    """Write `data` to stdout and flush it."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def line(text: str = "") -> None:
    """Write one line of text to stdout."""
    write(f"{text}\n".encode("utf-8", errors="surrogateescape"))


def json_line(document: object) -> None:
    """Write `document` to stdout as one line of JSON."""
    import msgspec

    write(msgspec.json.encode(document) + b"\n")


def counted(number: int, one: str, many: str = "") -> str:
    """Return a count in words: "1 entry", "2,000 entries"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def note(text: str) -> None:
    """Write `text` to stderr after the program's name."""
    remark(f"warmlog: {text}")


def remark(text: str) -> None:
    """Write one line of text to stderr."""
    try:
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    except BrokenPipeError:
        return


def table(headings: Sequence[str], rows: Sequence[Sequence[Cell]], *, title: str = "") -> None:
    """Write a table to stdout; a terminal aligns numbers to the right."""
    if is_terminal():
        _rich_table(headings, rows, title)
        return
    lines = ["\t".join(map(str, row)) + "\n" for row in (headings, *rows)]
    write("".join(lines).encode("utf-8", errors="surrogateescape"))


def _rich_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]], title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold")
    for number, heading in enumerate(headings):
        is_number = bool(rows) and all(isinstance(row[number], int) for row in rows)
        drawn.add_column(Text(heading), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(str(cell)) for cell in row))
    try:
        Console().print(drawn)
    except BrokenPipeError:
        raise OutputClosed from None


def flush_output() -> None:
    """Flush stdout."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def forget_output() -> None:
    """Redirect stdout to /dev/null, so that the interpreter's flush at exit does not fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
