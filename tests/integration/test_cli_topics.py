"""`warmlog topic`, its `delete-records` too, and `warmlog offsets` against a real broker."""

import json
from pathlib import Path

import pytest

from integration.command_line import CommandLine, at_terminal, error_line, succeeded


def test_a_topic_is_created_listed_described_and_deleted(warmlog: CommandLine) -> None:
    created = warmlog("topic", "create", "life", "--partitions", "4", "--config", "segment.bytes=16777216")
    assert succeeded(created) == b""
    assert b"created topic life with 4 partitions" in created.stderr
    assert b"life" in succeeded(warmlog("topic", "list")).splitlines()

    described = succeeded(warmlog("topic", "describe", "life")).decode()
    assert "topic life, 4 partitions" in described
    assert "3\t" in described
    assert (
        "durability: acks=all acknowledges after fsync; acks=1 from the page cache, flushed within 100 ms" in described
    )
    assert "segment.bytes\t16777216" in described
    assert "retention.ms" not in described
    assert "retention.ms\t604800000" in succeeded(warmlog("topic", "describe", "life", "--all")).decode()

    succeeded(warmlog("topic", "delete", "life", "--yes"))
    assert b"life" not in succeeded(warmlog("topic", "list")).splitlines()


def test_json_says_the_same_for_scripts(warmlog: CommandLine) -> None:
    created = json.loads(succeeded(warmlog("topic", "create", "js", "--config", "retention.ms=-1", "--json")))
    assert created["name"] == "js"
    succeeded(warmlog("produce", "js", given=b"a\nb\n"))
    described = json.loads(succeeded(warmlog("topic", "describe", "js", "--json")))
    assert described["topic_id"] == created["topic_id"]
    assert described["configs"]["retention.ms"] == {"value": "-1", "is_default": False, "origin": "topic"}
    (partition,) = described["partitions"]
    assert (partition["log_start_offset"], partition["high_watermark"], partition["log_end_offset"]) == (0, 2, 2)
    assert (partition["uncommitted"], partition["error"]) == (0, None)
    assert partition["replicas"] == partition["in_sync_replicas"] == [partition["leader"]]
    assert described["durability"] == {"acks_all": "fsync", "flush_ms": 100, "flush_messages": None}
    listed = {topic["name"]: topic for topic in json.loads(succeeded(warmlog("topic", "list", "--json")))}
    size_bytes = described["size_bytes"]
    assert size_bytes > 0
    expected = {"name": "js", "topic_id": created["topic_id"], "partitions": 1, "records": 2, "size_bytes": size_bytes}
    assert listed["js"] == expected
    assert json.loads(succeeded(warmlog("topic", "delete", "js", "--yes", "--json"))) == {"name": "js", "deleted": True}


def test_a_topic_whose_answers_do_not_wait_for_the_disk_says_so(warmlog: CommandLine) -> None:
    settings = ("--config", "write.caching=true", "--config", "flush.ms=20", "--config", "flush.messages=500")
    succeeded(warmlog("topic", "create", "cached", *settings))
    described = succeeded(warmlog("topic", "describe", "cached")).decode()
    assert "durability: acks=all and acks=1 acknowledge from the page cache (write.caching), " in described
    assert "flushed within 20 ms or at 500 records" in described
    found = json.loads(succeeded(warmlog("topic", "describe", "cached", "--json")))["durability"]
    assert found == {"acks_all": "page cache", "flush_ms": 20, "flush_messages": 500}


def test_what_the_broker_refuses_is_told(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "twice"))
    assert "twice" in error_line(warmlog("topic", "create", "twice"))
    assert "segment.bytes" in error_line(warmlog("topic", "create", "bad", "--config", "segment.byte=1"))
    assert "nowhere" in error_line(warmlog("topic", "describe", "nowhere"))
    assert "nowhere" in error_line(warmlog("topic", "delete", "nowhere", "--yes"))
    assert "nowhere" in error_line(warmlog("offsets", "nowhere"))
    assert error_line(warmlog("topic", "create", "no/such name"))


def test_deleting_asks_at_terminal(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "dear"))
    exit_code, lines = at_terminal(warmlog, "topic", "delete", "dear", typed=b"n\n")
    assert exit_code == 1
    assert any("Delete dear and all its records?" in line for line in lines)
    assert b"dear" in succeeded(warmlog("topic", "list"))
    exit_code, _ = at_terminal(warmlog, "topic", "delete", "dear", typed=b"y\n")
    assert exit_code == 0
    assert b"dear" not in succeeded(warmlog("topic", "list"))


def test_offsets_are_those_of_the_edges_and_of_times(warmlog: CommandLine) -> None:
    succeeded(warmlog("topic", "create", "places", "--partitions", "2"))
    succeeded(warmlog("produce", "places", "--partition", "1", given=b"a\nb\nc\n"))
    assert succeeded(warmlog("offsets", "places")) == b"places:0:0\nplaces:1:3\n"
    assert succeeded(warmlog("offsets", "places", "--at", "earliest")) == b"places:0:0\nplaces:1:0\n"
    assert succeeded(warmlog("offsets", "places", "--at", "2013-07-01T00:00")) == b"places:0:0\nplaces:1:0\n"
    assert succeeded(warmlog("offsets", "places", "--at", "2199-01-01", "--partition", "1")) == b"places:1:3\n"
    (found,) = json.loads(succeeded(warmlog("offsets", "places", "--at", "2199-01-01", "--partition", "1", "--json")))
    assert (found["topic"], found["partition"], found["offset"], found["timestamp_ms"]) == ("places", 1, 3, -1)
    assert "partitions 0 to 1" in error_line(warmlog("offsets", "places", "--partition", "2"))


def offsets_file(path: Path, *rows: tuple[str, int, int], version: int = 1) -> Path:
    partitions = [{"topic": topic, "partition": partition, "offset": offset} for topic, partition, offset in rows]
    path.write_text(json.dumps({"partitions": partitions, "version": version}))
    return path


def fill(warmlog: CommandLine, topic: str) -> None:
    succeeded(warmlog("topic", "create", topic, "--partitions", "2"))
    succeeded(warmlog("produce", topic, "--partition", "0", given=b"a\nb\nc\n"))


def test_one_partition_is_named_on_the_command_line(warmlog: CommandLine) -> None:
    fill(warmlog, "one")
    printed = succeeded(warmlog("topic", "delete-records", "one", "--partition", "0", "--offset", "2", "-y")).decode()
    assert printed == "partition: one-0\tlow_watermark: 2\n"
    described = json.loads(succeeded(warmlog("topic", "describe", "one", "--json")))
    assert [partition["log_start_offset"] for partition in described["partitions"]] == [2, 0]
    assert succeeded(warmlog("consume", "one", "--count", "1")) == b"c\n"


def test_a_file_names_many_and_each_has_its_line(warmlog: CommandLine, tmp_path: Path) -> None:
    fill(warmlog, "many")
    file = offsets_file(tmp_path / "offsets.json", ("many", 0, -1), ("many", 1, 5))
    done = warmlog("topic", "delete-records", "--offset-json-file", file, "--yes")
    assert "many-1" in error_line(done)
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "partition: many-0\tlow_watermark: 3"
    assert lines[1].startswith("partition: many-1\terror: ")
    assert "above the high watermark 0" in lines[1]
    assert len(lines) == 2
    assert b"executing records delete operation" in done.stderr


def test_deleted_records_are_json_for_scripts(warmlog: CommandLine, tmp_path: Path) -> None:
    fill(warmlog, "scripts")
    file = offsets_file(tmp_path / "offsets.json", ("scripts", 0, 1))
    printed = succeeded(warmlog("topic", "delete-records", "--offset-json-file", file, "--json", "--yes"))
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
def test_a_file_of_another_form_is_refused(warmlog: CommandLine, tmp_path: Path, content: str, reason: str) -> None:
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
