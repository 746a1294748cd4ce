"""`warmlog topic delete-records`, and `topic describe` while a flush is held back, against a real broker."""

import json
from pathlib import Path

import pytest

from integration.command_line import CommandLine, error_line, succeeded


def offsets_file(path: Path, *rows: tuple[str, int, int], version: int = 1) -> Path:
    partitions = [{"topic": topic, "partition": partition, "offset": offset} for topic, partition, offset in rows]
    path.write_text(json.dumps({"partitions": partitions, "version": version}))
    return path


def fill(warmlog: CommandLine, topic: str) -> None:
    succeeded(warmlog("topic", "create", topic, "--partitions", "2"))
    succeeded(warmlog("produce", topic, "--partition", "0", given=b"a\nb\nc\n"))


def test_one_partition_is_named_on_the_command_line(warmlog: CommandLine) -> None:
    fill(warmlog, "one")
    printed = succeeded(warmlog("topic", "delete-records", "one", "--partition", "0", "--offset", "2")).decode()
    assert printed == "partition: one-0\tlow_watermark: 2\n"
    described = json.loads(succeeded(warmlog("topic", "describe", "one", "--json")))
    assert [partition["log_start_offset"] for partition in described["partitions"]] == [2, 0]
    assert succeeded(warmlog("consume", "one", "--count", "1")) == b"c\n"


def test_a_file_names_many_and_each_has_its_line(warmlog: CommandLine, tmp_path: Path) -> None:
    fill(warmlog, "many")
    file = offsets_file(tmp_path / "offsets.json", ("many", 0, -1), ("many", 1, 5))
    done = warmlog("topic", "delete-records", "--offset-json-file", file)
    assert "many-1" in error_line(done)
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "partition: many-0\tlow_watermark: 3"
    assert lines[1].startswith("partition: many-1\terror: ")
    assert "above the high watermark 0" in lines[1]
    assert len(lines) == 2
    assert b"executing records delete operation" in done.stderr


def test_json_says_the_same_for_scripts(warmlog: CommandLine, tmp_path: Path) -> None:
    fill(warmlog, "scripts")
    file = offsets_file(tmp_path / "offsets.json", ("scripts", 0, 1))
    printed = succeeded(warmlog("topic", "delete-records", "--offset-json-file", file, "--json"))
    assert json.loads(printed) == [{"topic": "scripts", "partition": 0, "low_watermark": 1}]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            '{"partitions": [{"topic": "t", "partition": 0, "offset": 1}, '
            '{"topic": "t", "partition": 0, "offset": 2}]}',
            "t-0 is in the file twice",
        ),
        ('{"partitions": [{"topic": "t", "partition": 0, "offset": 1}], "version": 2}', "version 2"),
        ('{"partitions": []}', "no partition"),
        ('{"partitions": [{"topic": "t", "partition": 0}]}', "offset"),
        ("offsets", "the file is malformed"),
    ],
    ids=["twice", "version", "empty", "no offset", "no JSON"],
)
def test_a_file_of_another_form_is_refused_before_anything_is_asked(
    warmlog: CommandLine, tmp_path: Path, content: str, reason: str
) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(content)
    done = warmlog("topic", "delete-records", "--offset-json-file", path)
    assert done.returncode == 2
    assert reason in " ".join(done.stderr.decode().replace("│", " ").split())
    assert done.stdout == b""


def test_a_file_that_is_not_there_and_half_a_command_line_are_told(warmlog: CommandLine, tmp_path: Path) -> None:
    assert "No such file" in error_line(warmlog("topic", "delete-records", "--offset-json-file", tmp_path / "none"))
    for arguments in (["t", "--partition", "0"], ["t", "--offset", "3"], []):
        assert warmlog("topic", "delete-records", *arguments).returncode == 2
    file = offsets_file(tmp_path / "offsets.json", ("t", 0, 1))
    assert warmlog("topic", "delete-records", "t", "--offset-json-file", file).returncode == 2


def test_describe_shows_what_is_not_durable_yet(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "held", "--config", "flush.ms=80000000"))
    succeeded(warmlog("produce", "held", "--acks", "1", given=b"a\nb\nc\n"))
    printed = succeeded(warmlog("topic", "describe", "held")).decode()
    headings, row = (line.split("\t") for line in printed.splitlines()[3:5])
    values = dict(zip(headings, row, strict=True))
    assert (values["log start"], values["last stable"], values["high watermark"]) == ("0", "0", "0")
    assert (values["log end"], values["uncommitted"]) == ("3", "3")
