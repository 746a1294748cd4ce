"""Output of commands: data on stdout, everything else on stderr.

What others have chosen, such as names, keys and values, is made `harmless` wherever a terminal shows it.

On a terminal `tables` draws the tables. Elsewhere they are plain text for scripts: a line for each row, fields
separated by tabs, headings in the first line, counts as digits, sizes and times with their units.
"""

import io
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from warmlog.cli.terminal.tables import Age, Cell, Instant, Row, Size, draw, draw_facts, harmless, shown


class OutputClosed(Exception):
    """The reader of stdout has closed it."""


def open_closed_streams() -> None:
    """Give streams that the caller has closed (`>&-`) their descriptors, so that no socket or file gets them.

    What reads stdin or writes to stdout then fails with an error of the system; stderr goes nowhere.
    """
    for number, (name, mode) in enumerate([("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb")]):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_WRONLY)  # takes the lowest free number
            raw = open(number, mode, buffering=0)  # noqa: SIM115  # keeps nothing that a flush at the end would refuse
            setattr(sys, name, io.TextIOWrapper(raw, write_through=True))


def is_terminal() -> bool:
    return sys.stdout.isatty()


def terminal_size() -> os.terminal_size:
    """Return the size of the terminal, or that which COLUMNS and LINES say."""
    from shutil import get_terminal_size

    return get_terminal_size()


def write(data: bytes) -> None:
    """Write `data` to stdout and flush it."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def write_shown(data: bytes) -> None:
    """As `write`, but what is not text is harmless if stdout is a terminal."""
    write(harmless(data.decode(errors="replace")).encode() if is_terminal() else data)


def line(text: str = "") -> None:
    """Write one line of text to stdout."""
    _write_lines([text])


def json_line(document: object) -> None:
    """Write `document` to stdout as one line of JSON."""
    import msgspec

    text = msgspec.json.encode(document) + b"\n"
    if is_terminal():  # JSON has escaped the others
        text = re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text.decode()).encode()
    write(text)


def counted(number: int, one: str, many: str = "") -> str:
    """Return a count in words: "1 entry", "2,000 entries"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def note(text: str) -> None:
    """Write `text` to stderr after the program's name."""
    remark(f"warmlog: {text}")


def remark(text: str) -> None:
    """Write one line of text to stderr. If that is closed or full, the exit code has to do."""
    with suppress(OSError):
        print(harmless(text) if sys.stderr.isatty() else text, file=sys.stderr, flush=True)  # noqa: T201


def table(headings: Sequence[str], rows: Sequence[Row]) -> None:
    """Write a table to stdout; on a terminal it has the terminal's width, elsewhere a line for each row."""
    if is_terminal():
        _write_lines(draw(headings, rows, terminal_size().columns))
    else:
        _write_lines(["\t".join(_piped(cell) for cell in row) for row in (headings, *rows)])


def _piped(cell: Cell) -> str:
    """Return the cell for scripts: counts as digits, what has a unit with it."""
    return shown(cell) if isinstance(cell, Age | Instant | Size) else escaped(str(cell))


def escaped(text: str) -> str:
    """Return `text` with its control characters as backslash escapes, so that it stays one cell of one line."""
    if text.isprintable():
        return text
    return "".join(
        letter.encode("unicode_escape").decode() if letter < " " or "\x7f" <= letter <= "\x9f" else letter
        for letter in text
    )


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Write names and texts to stdout, one pair a line; on a terminal the texts are aligned and wrapped."""
    if is_terminal():
        _write_lines(draw_facts(pairs, terminal_size().columns))
    else:
        _write_lines(["\t".join(pair) for pair in pairs])


def _write_lines(lines: Sequence[str]) -> None:
    text = "".join(f"{text}\n" for text in lines)
    write((harmless(text) if is_terminal() else text).encode("utf-8", errors="surrogateescape"))


@contextmanager
def output_watched() -> Iterator[None]:
    """Within a task: raise OutputClosed when the reader of a pipe has ended, also while nothing is written."""
    import asyncio
    import select
    import threading

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    is_closed = is_over = False

    def end() -> None:
        nonlocal is_closed
        if not is_over:
            is_closed = True
            task.cancel()

    def watch() -> None:  # in a thread, as an event loop would make the pipe non-blocking, for all that write to it
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), 0)  # errors are told nevertheless
        pipe.poll()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end)

    if stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode):
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except asyncio.CancelledError:
        if is_closed:
            raise OutputClosed from None
        raise
    finally:
        is_over = True
