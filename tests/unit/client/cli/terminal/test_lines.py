"""Standard input becomes lines: the same ones, however the bytes arrive."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor_time import slowness
from warmlog.cli.commands.produce import parse_separator, split_keys
from warmlog.cli.terminal import lines
from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.lines import LineSplitter, read_rounds


@given(st.binary(max_size=60).map(lambda data: data.replace(b"x", b"\n")), st.lists(st.integers(0, 60), max_size=5))
def test_lines_do_not_depend_on_where_the_input_is_cut(data: bytes, cuts: list[int]) -> None:
    splitter = LineSplitter()
    lines: list[bytes] = []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        lines += splitter.feed(data[start:end])
    lines += splitter.finish()
    expected = data.split(b"\n")
    assert lines == (expected if expected[-1] else expected[:-1])


def test_only_the_newline_is_taken_off() -> None:
    assert LineSplitter().feed(b" a \r\n\n\0\n") == [b" a \r", b"", b"\0"]


def test_a_last_line_without_a_newline_counts() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"a\nb") == [b"a"]
    assert splitter.finish() == [b"b"]
    assert splitter.finish() == []


def test_a_line_that_does_not_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 10)
    splitter = LineSplitter()
    splitter.feed(b"12345")
    with pytest.raises(CommandFailed, match="more than 10 bytes"):
        splitter.feed(b"678901")


def test_a_long_line_is_not_copied_for_each_piece_of_it() -> None:
    splitter = LineSplitter()
    started_s = time.process_time()
    for _ in range(512):
        splitter.feed(bytes(64 * 1024))
    assert len(splitter.feed(b"\n")[0]) == 32 * 1024 * 1024
    assert time.process_time() - started_s < slowness()  # ten times that if it were


async def _read_all(descriptor: int, max_round_bytes: int = 1 << 20) -> list[bytes]:
    return [piece async for piece in read_rounds(descriptor, max_round_bytes)]


def test_a_file_is_read_to_its_end_and_an_empty_piece_follows(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"line\n" * 300_000)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pieces = asyncio.run(_read_all(descriptor))
    finally:
        os.close(descriptor)
    assert b"".join(pieces) == path.read_bytes()
    assert pieces[-1] == b""
    assert all(pieces[:-1])


def test_what_a_slow_pipe_holds_is_given_at_once() -> None:
    reading, writing = os.pipe()
    came = threading.Event()

    def write() -> None:
        os.write(writing, b"first\n")
        came.wait(25)
        os.write(writing, b"second\n")
        os.close(writing)

    async def read() -> list[bytes]:
        pieces = []
        async for piece in read_rounds(reading, 1 << 20):
            pieces.append(piece)
            came.set()
        return pieces

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert asyncio.run(read()) == [b"first\n", b"second\n", b""]
    finally:
        writer.join()
        os.close(reading)


def test_input_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            asyncio.run(_read_all(descriptor))
    finally:
        os.close(descriptor)


def test_keys_end_at_the_first_separator() -> None:
    assert split_keys([b"UA:EWR:IAH", b":x", b"y:"], b":", 0) == ([b"UA", b"", b"y"], [b"EWR:IAH", b"x", b""])


def test_a_line_without_a_separator_is_named_by_its_number() -> None:
    with pytest.raises(CommandFailed, match="line 12 has no separator"):
        split_keys([b"a:b", b"ab"], b":", 10)


def test_a_separator_may_be_escaped_and_must_lie_within_a_line() -> None:
    assert parse_separator(r"\t") == b"\t"
    assert parse_separator("=>") == b"=>"
    for text in ("", r"\n", r"\q"):
        with pytest.raises(ValueError, match=r"separator|separate|escape"):
            parse_separator(text)
