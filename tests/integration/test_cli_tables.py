"""`warmlog produce --format csv` and `--format parquet`."""

import json
import signal
import subprocess
import time
from array import array
from datetime import datetime
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from integration.command_line import WARMLOG, CommandLine, Done, error_line, succeeded
from waiting import wait_until

CSV = b'id,at,n,part,text\n007,2026-11-20T08:00:00Z,1,1,"a, b"\n008,1795737600123,2.5,0,\n,,,1,plain\n'


@pytest.fixture
def made(warmlog: CommandLine, topic: str) -> str:
    succeeded(warmlog("topic", "create", topic, "--partitions", "2", "--config", "retention.ms=-1"))
    return topic


def records(warmlog: CommandLine, topic: str) -> list[dict[str, Any]]:
    lines = succeeded(warmlog("consume", topic, "--to", "latest", "--json")).splitlines()
    return sorted(map(json.loads, lines), key=lambda record: (record["partition"], record["offset"]))


def from_file(warmlog: CommandLine, path: Path, *arguments: str) -> Done:
    """A command whose standard input is this file."""
    with path.open("rb") as file:
        return subprocess.run([*WARMLOG, *arguments], stdin=file, capture_output=True, env=warmlog.environment)


def test_rows_of_csv_become_json_with_columns_for_key_timestamp_and_partition(warmlog: CommandLine, made: str) -> None:
    columns = ("--key-column", "id", "--timestamp-column", "at", "--partition-column", "part")
    before_ms = time.time_ns() // 1_000_000
    done = warmlog("produce", made, "--format", "csv", *columns, "--json", given=CSV)
    assert json.loads(succeeded(done))["records"] == 3
    zero, first, second = records(warmlog, made)
    assert [json.loads(each["value"]) for each in (zero, first, second)] == [
        {"n": 2.5, "text": None},
        {"n": 1.0, "text": "a, b"},
        {"n": None, "text": "plain"},
    ]
    assert [(each["partition"], each["key"]) for each in (zero, first, second)] == [(0, "008"), (1, "007"), (1, None)]
    assert (zero["timestamp_ms"], first["timestamp_ms"]) == (1795737600123, 1795161600000)
    assert second["timestamp_ms"] >= before_ms


def test_text_of_csv_that_looks_like_a_null_is_text_and_an_empty_field_is_null(warmlog: CommandLine, made: str) -> None:
    given = b"country,n,other\nNA,1,null\nDE,NA,text\nnull,3,\n"
    options = ("--key-column", "country", "--partition", "0")
    succeeded(warmlog("produce", made, "--format", "csv", *options, given=given))
    assert [(each["key"], json.loads(each["value"])) for each in records(warmlog, made)] == [
        ("NA", {"n": 1, "other": "null"}),
        ("DE", {"n": None, "other": "text"}),
        ("null", {"n": 3, "other": None}),
    ]


def test_a_table_may_have_a_key_and_nothing_else(warmlog: CommandLine, made: str) -> None:
    options = ("--key-column", "id", "--partition", "0")
    succeeded(warmlog("produce", made, "--format", "csv", *options, given=b"id\na\nb\n"))
    assert [(each["key"], each["value"]) for each in records(warmlog, made)] == [("a", "{}"), ("b", "{}")]


def test_times_without_a_zone_are_local_in_every_format(warmlog: CommandLine, made: str, tmp_path: Path) -> None:
    warmlog.environment["TZ"] = "America/New_York"
    columns = ("--timestamp-column", "at", "--partition", "0")
    times = [datetime(2026, 7, 1, 8, 0, 0, 5000), datetime(2026, 11, 20, 8)]
    path = tmp_path / "times.parquet"
    parquet.write_table(pa.table({"at": times, "n": [1, 2]}), path)
    succeeded(from_file(warmlog, path, "produce", made, "--format", "parquet", *columns))
    rows = "".join(f"{each.isoformat()},1\n" for each in times)
    succeeded(warmlog("produce", made, "--format", "csv", *columns, given=f"at,n\n{rows}".encode()))
    expected = [1782907200005, 1795179600000]
    assert [each["timestamp_ms"] for each in records(warmlog, made)] == expected * 2


def test_an_interrupt_ends_it_while_its_input_is_a_pipe_without_news(warmlog: CommandLine, made: str) -> None:
    running = warmlog.start("produce", made, "--format", "csv")
    assert running.stdin is not None
    running.stdin.write(CSV)
    running.stdin.flush()
    unread = array("i", [1])

    def is_read() -> bool:
        ioctl(running.stdin.fileno(), FIONREAD, unread)  # type: ignore[union-attr]
        return unread[0] == 0

    wait_until(is_read)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=40) == 130
    running.communicate()


def test_all_columns_of_csv_may_stay_text(warmlog: CommandLine, made: str) -> None:
    succeeded(warmlog("produce", made, "--format", "csv", "--text", "--partition", "0", given=CSV))
    first, *_ = records(warmlog, made)
    assert json.loads(first["value"]) == {
        "id": "007",
        "at": "2026-11-20T08:00:00Z",
        "n": "1",
        "part": "1",
        "text": "a, b",
    }


def test_rows_of_a_parquet_file_become_json(warmlog: CommandLine, made: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table({"id": [1, 2, 3], "tags": [["a"], [], None], "part": pa.array([1, 1, 1], pa.int8())})
    parquet.write_table(table, path, row_group_size=2)
    done = from_file(
        warmlog, path, "produce", made, "--format", "parquet", "--key-column", "id", "--partition-column", "part"
    )
    succeeded(done)
    assert [(each["key"], json.loads(each["value"])) for each in records(warmlog, made)] == [
        ("1", {"tags": ["a"]}),
        ("2", {"tags": []}),
        ("3", {"tags": None}),
    ]


@pytest.mark.parametrize(
    ("given", "options", "told"),
    [
        (b"a,b\n1,2\n", ("--key-column", "c"), "there is no column 'c', only a, b"),
        (b"a,b\n1,2\n1\n", (), "no csv can be read"),
        (b"a,b\n" + b"1,2\n" * 2_000_000 + b"x,2\n", (), "--text leaves all columns"),
        (b"a,b\nx,never\n", ("--timestamp-column", "b"), "'never' is not a time"),
        (b"a,b\nx,one\n", ("--partition-column", "b"), "a column does not fit: "),
        (b"a,b\nx,9\n", ("--partition-column", "b"), "has partitions 0 to 1, not 9"),
    ],
    ids=["column", "row", "type", "time", "partition", "range"],
)
def test_a_table_that_does_not_fit_is_refused_with_the_reason(
    warmlog: CommandLine, made: str, given: bytes, options: tuple[str, ...], told: str
) -> None:
    assert told in error_line(warmlog("produce", made, "--format", "csv", *options, given=given))


def test_options_of_tables_are_for_tables(warmlog: CommandLine, made: str) -> None:
    for arguments in (
        ["--key-column", "a"],
        ["--format", "csv", "--key", "a"],
        ["--format", "csv", "--partition", "0", "--partition-column", "b"],
        ["--format", "json", "--text"],
        ["--format", "csv", "--acks", "1"],
    ):
        assert warmlog("produce", made, *arguments, given=b"").returncode == 2


def test_rows_of_many_chunks_all_arrive_in_order(warmlog: CommandLine, made: str, tmp_path: Path) -> None:
    path, rows = tmp_path / "rows.csv", 400_000
    path.write_text("id,carrier,distance\n" + "".join(f'{n},"U{n % 7}",{n % 3000}\n' for n in range(rows)))
    options = ("--format", "csv", "--partition", "1", "--json")
    assert json.loads(succeeded(from_file(warmlog, path, "produce", made, *options)))["records"] == rows
    lines = succeeded(warmlog("consume", made, "--to", "latest")).splitlines()
    assert lines == [b'{"id":%d,"carrier":"U%d","distance":%d}' % (n, n % 7, n % 3000) for n in range(rows)]
