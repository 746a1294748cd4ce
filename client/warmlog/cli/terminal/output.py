"""What a command prints, and where: data on stdout, everything else on stderr.

Tables are drawn by rich on a terminal. Elsewhere they are plain text that scripts can rely on: one line a row, fields
separated by a tab, the headings in the first line.
"""

import os
import sys
from collections.abc import Sequence

Cell = str | int


class OutputClosed(Exception):
    """Whoever read stdout has gone."""


def is_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def write(data: bytes) -> None:
    """Puts `data` on stdout as it is, and flushes it."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def line(text: str = "") -> None:
    """Puts one line of text on stdout."""
    write(f"{text}\n".encode("utf-8", errors="surrogateescape"))


def json_line(document: object) -> None:
    """Puts `document` on stdout as one line of JSON."""
    import msgspec

    write(msgspec.json.encode(document) + b"\n")


def counted(number: int, one: str, many: str = "") -> str:
    """How many, in words: "1 entry", "2,000 entries"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def note(text: str) -> None:
    """Tells the user something on stderr, and who says it."""
    remark(f"warmlog: {text}")


def remark(text: str) -> None:
    """Puts one line of text on stderr."""
    try:
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    except BrokenPipeError:
        return


def table(headings: Sequence[str], rows: Sequence[Sequence[Cell]], *, title: str = "") -> None:
    """Puts a table on stdout; numbers are aligned to the right on a terminal."""
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
    """Passes on what is left in the buffer of stdout."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def forget_output() -> None:
    """Points stdout to nowhere, so that the interpreter's own flush at the end has nobody to complain about."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
