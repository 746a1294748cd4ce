"""`warmlog group`, the groups of `warmlog status` and of Admin, against a real broker and real members."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import warmlog.blocking
from broker_process import BrokerProcess
from group_member import GroupMember, member_of
from integration.command_line import TERMINAL_COLUMNS, CommandLine, Done, at_terminal, error_line, succeeded
from integration.test_cli_operating import completed
from warmlog import GroupSubscribedToTopic, NonEmptyGroup, OffsetMetadataTooLarge
from warmlog.blocking import Consumer, Producer
from warmlog.cli.terminal import tables

LONG = "a-group-of-a-name-that-no-table-of-eighty-columns-can-show-in-full-" + "x" * 60


@pytest.fixture
def filled(warmlog: CommandLine, topic: str) -> str:
    """A topic of two partitions; the first has 100 records."""
    succeeded(warmlog("topic", "create", topic, "--partitions", "2"))
    succeeded(warmlog("produce", topic, "--partition", "0", given=b"value\n" * 100))
    return topic


def commit(member: GroupMember, *offsets: int) -> None:
    """Commit these offsets for partitions 0, 1, … of the topic that it owns."""
    results = member.commit(member.owned[0].topic_id, *enumerate(offsets))
    assert [each.error_code for each in results] == [0] * len(offsets)


def reading(broker: BrokerProcess, topic: str) -> warmlog.blocking.Consumer:
    return warmlog.blocking.Consumer(broker.address, topics=[topic], group=topic, commit="manual")


def reset(warmlog: CommandLine, group: str, topic: str, to: object = "earliest") -> Done:
    return warmlog("group", "reset", group, "--topic", topic, "--to", to, "--execute", "--json")


def document(done: Done) -> Any:
    return json.loads(succeeded(done))


def test_a_group_is_reset_described_and_deleted(warmlog: CommandLine, filled: str) -> None:
    group = f"g-{filled}"
    assert group in error_line(warmlog("group", "describe", group))
    dry = warmlog("group", "reset", group, "--topic", filled, "--to", "40")
    shown = warmlog("consume", filled, "--partition", "0", "--from", "40", "--count", "1", "--format", "%s")
    first = tables.local_time(int(succeeded(shown)))
    assert succeeded(dry).decode().splitlines()[1:] == [
        f"{filled}\t0\t\t40\t0\t0\t{first}",
        f"{filled}\t1\t\t0\t0\t0\t",
    ]
    assert b"nothing was changed: add --execute" in dry.stderr
    assert group.encode() not in succeeded(warmlog("group", "list")).splitlines()

    done = document(reset(warmlog, group, filled, 40))
    assert (done["group"], done["executed"]) == (group, True)
    assert group.encode() in succeeded(warmlog("group", "list")).splitlines()
    described = document(warmlog("group", "describe", group, "--json"))
    assert (described["state"], described["members"], described["lag_records"]) == ("empty", [], 60)
    assert 0 <= described["lag_seconds"] < 600
    lags = {
        each["partition"]: (each["committed"], each["high_watermark"], each["lag_records"])
        for each in described["partitions"]
    }
    assert lags == {0: (40, 100, 60), 1: (0, 0, 0)}

    shifted = document(warmlog("group", "reset", group, "--to", "-10", "--dry-run", "--json"))
    (first, _) = shifted["partitions"]
    assert (shifted["executed"], first["committed"], first["offset"], first["repeated"]) == (False, 40, 30, 10)
    assert document(warmlog("group", "describe", group, "--json"))["lag_records"] == 60, "a dry run"

    assert document(warmlog("group", "delete", group, "--json", "--yes")) == {"name": group, "deleted": True}
    assert group.encode() not in succeeded(warmlog("group", "list")).splitlines()
    assert error_line(warmlog("group", "delete", group))


def test_what_others_have_chosen_is_harmless_at_a_terminal_and_as_it_is_in_a_pipe(
    warmlog: CommandLine, broker: BrokerProcess, filled: str
) -> None:
    evil = f"\x1b[2J\x9b31m{filled}"
    with Consumer(broker.address, partitions=[f"{filled}-0"], group=evil, commit="manual") as consumer:
        consumer.commit({f"{filled}-0": 100}, metadata=evil)
    with Producer(broker.address, transactional_id=evil) as producer, producer.transaction():
        producer.send(filled, evil.encode(), key=evil.encode(), headers=[(evil, evil.encode())], partition=0)
    for command in (
        ("group", "list"),
        ("group", "describe", evil),
        ("group", "describe", f"not there {evil}"),
        ("group", "reset", evil, "--to", "-1", "--execute"),
        ("txn", "list"),
        ("txn", "describe", evil),
        ("--debug", "txn", "describe", f"not there {evil}"),
        ("status",),
        ("group", "describe", evil, "--json"),
        ("consume", filled, "--partition", "0", "--from", "100", "--to", "latest", "--format", "%k %v %h"),
        ("consume", filled, "--partition", "0", "--from", "100", "--to", "latest", "--json"),
        ("group", "delete", evil),
    ):
        _, lines = at_terminal(warmlog, *command, typed=b"n\n")
        shown = "\n".join(lines)
        assert filled[-8:] in shown, (command, shown)
        assert not {"\x1b", "\x9b"} & set(shown), (command, shown)
    described = warmlog("group", "describe", evil)
    assert f"group\t{evil}\n".encode() in succeeded(described)
    assert document(warmlog("group", "describe", evil, "--json"))["name"] == evil
    as_it_is = warmlog("consume", filled, "--partition", "0", "--from", "100", "--to", "latest", "--format", "%k %v")
    assert succeeded(as_it_is) == f"{evil} {evil}\n".encode()


def test_a_reset_goes_to_times_and_its_offsets_survive_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        warmlog = CommandLine(broker.address)
        succeeded(warmlog("topic", "create", "t"))
        succeeded(warmlog("produce", "t", given=b"x\n" * 7))
        done = document(warmlog("group", "reset", "g", "--topic", "t", "--to", "-1h", "--execute", "--json"))
        assert done["partitions"][0]["offset"] == 0
        assert (
            document(warmlog("group", "reset", "g", "--to", "latest", "--execute", "--json"))["partitions"][0]["offset"]
            == 7
        )
    with BrokerProcess(tmp_path) as broker:
        warmlog = CommandLine(broker.address)
        (lag,) = document(warmlog("group", "describe", "g", "--json"))["partitions"]
        assert (lag["committed"], lag["lag_records"], lag["lag_seconds"]) == (7, 0, 0.0)


def test_the_log_of_groups_is_dumped_as_what_it_says(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        warmlog = CommandLine(broker.address)
        succeeded(warmlog("topic", "create", "t", "--partitions", "2"))
        succeeded(warmlog("produce", "t", "--partition", "0", given=b"x\n" * 7))
        topic_id = document(warmlog("topic", "describe", "t", "--json"))["topic_id"]
        with member_of(broker.address, "g", "t", 2, instance_id="worker-1") as member:
            commit(member, 5, 0)
        succeeded(warmlog("group", "delete", "g", "--yes"))
    files = [path for path in tmp_path.glob("__groups-*/*.log") if path.stat().st_size]
    printed = succeeded(warmlog("log", "dump", "--print-data-log", *files)).decode().splitlines()
    records = [line.partition(" key: ")[2].partition(" payload: ") for line in printed if " key: " in line]
    found = [(json.loads(key), json.loads(value) if value else None) for key, _, value in records]
    assert {key["kind"] for key, _ in found} >= {"group", "member", "target", "share", "assignment", "offset"}
    assert {key["group"] for key, _ in found} == {"g"}
    key = {"kind": "offset", "group": "g", "topic_id": topic_id, "partition": 0}
    committed, deleted = (value for each, value in found if each == key)
    assert (committed["offset"], committed["topic"], deleted) == (5, "t", None)
    (joined, *_) = (value for each, value in found if each["kind"] == "member")
    assert (joined["instance_id"], joined["client_id"], joined["topics"]) == ("worker-1", "test", ["t"])


def test_members_are_shown_with_what_they_read(broker: BrokerProcess, warmlog: CommandLine, filled: str) -> None:
    group = f"g-{filled}"
    with member_of(broker.address, group, filled, 2, instance_id="worker-1") as member:
        commit(member, 0, 0)
        found = document(warmlog("group", "describe", group, "--json"))
        assert (found["state"], found["lag_records"], len(found["partitions"])) == ("stable", 100, 2)
        (shown,) = document(warmlog("group", "members", group, "--json"))
        assert shown == found["members"][0]
        assert (shown["member_id"], shown["instance_id"]) == (member.member_id, "worker-1")
        assert shown["assigned"] == [{"topic": filled, "partition": number} for number in (0, 1)]
        row = succeeded(warmlog("group", "members", group)).decode().splitlines()[1].split("\t")
        assert (row[0], row[1], row[4], row[5]) == ("worker-1", "test", f"{filled} 0-1", "")
        assert [
            line.split("\t")[-1] for line in succeeded(warmlog("group", "describe", group)).decode().splitlines()[-2:]
        ] == [
            "worker-1",
            "worker-1",
        ]
        listed = {each["name"]: each for each in document(warmlog("group", "list", "--json"))}
        assert listed[group] == {"name": group, "state": "stable", "members": 1}


def test_a_group_with_members_is_not_reset_or_deleted(broker: BrokerProcess, warmlog: CommandLine, filled: str) -> None:
    group = f"g-{filled}"
    with (
        member_of(broker.address, group, filled, 2, instance_id="worker-1") as member,
        warmlog_admin(broker) as admin,
    ):
        commit(member, 5, 0)
        for command in (("reset", group, "--to", "latest", "--execute"), ("delete", group, "--yes")):
            assert f"group '{group}' has 1 member: worker-1 (test at 127.0.0.1)" in error_line(
                warmlog("group", *command)
            )
        with pytest.raises(NonEmptyGroup, match="worker-1"):
            admin.reset_offsets(group, "latest")
        with pytest.raises(GroupSubscribedToTopic):
            admin.delete_offsets(group, [f"{filled}-0"])
    assert document(warmlog("group", "describe", group, "--json"))["lag_records"] == 95
    assert reset(warmlog, group, filled, "latest").returncode == 0
    with warmlog_admin(broker) as admin:
        admin.delete_offsets(group, [f"{filled}-0"])
        assert list(admin.committed_offsets(group)) == [(filled, 1)]


def warmlog_admin(broker: BrokerProcess) -> warmlog.blocking.Admin:
    return warmlog.blocking.Admin(broker.address)


def test_offsets_of_a_topic_that_was_recreated_are_gone(warmlog: CommandLine, filled: str) -> None:
    group = f"g-{filled}"
    reset(warmlog, group, filled, 40)
    succeeded(warmlog("topic", "delete", filled, "--yes"))
    succeeded(warmlog("topic", "create", filled, "--partitions", "2"))
    succeeded(warmlog("produce", filled, "--partition", "0", given=b"value\n" * 100))
    (first, _) = document(warmlog("group", "reset", group, "--topic", filled, "--to", "3", "--json"))["partitions"]
    assert first["committed"] is None


def test_deleting_a_group_asks_at_a_terminal(warmlog: CommandLine, filled: str) -> None:
    group = f"g-{filled}"
    succeeded(reset(warmlog, group, filled))
    exit_code, lines = at_terminal(warmlog, "group", "delete", group, typed=b"n\n")
    assert exit_code == 1
    assert any("and its committed offsets?" in line for line in lines)
    assert group.encode() in succeeded(warmlog("group", "list"))
    assert at_terminal(warmlog, "group", "delete", group, typed=b"y\n")[0] == 0
    assert group.encode() not in succeeded(warmlog("group", "list"))


def test_status_shows_the_groups_by_their_lag(warmlog: CommandLine, filled: str) -> None:
    for group, to in ((f"behind-{filled}", 10), (f"ahead-{filled}", "latest")):
        succeeded(reset(warmlog, group, filled, to))
    found = document(warmlog("status", "--interval", "0s", "--json"))["groups"]
    names = [each["name"] for each in found]
    assert names.index(f"behind-{filled}") < names.index(f"ahead-{filled}")
    by_name = {each["name"]: each for each in found}
    assert by_name[f"ahead-{filled}"] == {
        "name": f"ahead-{filled}",
        "state": "empty",
        "members": 0,
        "lag_records": 0,
        "lag_seconds": 0.0,
    }
    assert by_name[f"behind-{filled}"]["lag_records"] == 90
    assert by_name[f"behind-{filled}"]["lag_seconds"] > 0
    _, lines = at_terminal(warmlog, "status", "--interval", "0s")
    assert any(re.search(r"empty +0 +90 +[0-9.]+ (s|min)$", line) for line in lines)


def test_metadata_of_commits_is_described(broker: BrokerProcess, warmlog: CommandLine, filled: str) -> None:
    with reading(broker, filled) as consumer:
        next(consumer.batches())
        with pytest.raises(OffsetMetadataTooLarge, match="metadata of 4097 bytes: at most 4096 are allowed"):
            consumer.commit(metadata="x" * 4097)
        assert b"\tmetadata\n" not in succeeded(warmlog("group", "describe", filled))
        consumer.commit(metadata="a ½\tb\nc")
        assert consumer.committed_metadata([f"{filled}-0"]) == {(filled, 0): "a ½\tb\nc"}
    described = document(warmlog("group", "describe", filled, "--json"))
    first = described["partitions"][0]
    assert (first["committed"], first["metadata"]) == (100, "a ½\tb\nc")
    lines = succeeded(warmlog("group", "describe", filled)).decode().splitlines()
    (heading,) = (line for line in lines if line.startswith("topic\t"))
    (row,) = (line for line in lines if line.startswith(f"{filled}\t0\t"))
    assert dict(zip(heading.split("\t"), row.split("\t"), strict=True))["metadata"] == "a ½\\tb\\nc"


def test_names_with_control_characters_stay_in_one_line(warmlog: CommandLine, filled: str) -> None:
    group = f"{filled}\na\tb\x1b[31m"
    succeeded(reset(warmlog, group, filled))
    assert f"{filled}\\na\\tb\\x1b[31m" in succeeded(warmlog("group", "list")).decode().splitlines()
    assert group in [each["name"] for each in document(warmlog("group", "list", "--json"))]
    exit_code, lines = at_terminal(warmlog, "group", "list")
    assert exit_code == 0
    assert not any("\x1b[31m" in line for line in lines)


@pytest.mark.parametrize(
    "command", [["list"], ["describe", LONG], ["members", LONG], ["reset", LONG, "--to", "latest"]], ids=str
)
def test_all_tables_fit_80_columns(
    broker: BrokerProcess, warmlog: CommandLine, filled: str, command: list[str]
) -> None:
    succeeded(reset(warmlog, LONG, filled))
    assert at_terminal(warmlog, "group", *command)[0] == 0
    if command[0] == "reset":
        assert [line for line in at_terminal(warmlog, "group", *command)[1] if len(line) > TERMINAL_COLUMNS] == []
        return
    with member_of(broker.address, LONG, filled, 2):
        exit_code, lines = at_terminal(warmlog, "group", *command)
    assert exit_code == 0
    assert [line for line in lines if len(line) > TERMINAL_COLUMNS and LONG not in line] == []


def test_group_names_are_completed(warmlog: CommandLine, filled: str) -> None:
    succeeded(reset(warmlog, f"zebra-{filled}", filled))
    assert completed(warmlog, "warmlog", "group", "describe", "zebra") == [f"zebra-{filled}"]
    assert completed(warmlog, "warmlog", "group", "reset", "zebra") == [f"zebra-{filled}"]
    assert completed(warmlog, "warmlog", "group", "res") == ["reset"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--to", "soon"], "'soon': earliest, latest, an offset, a shift like +100 or -100, or a time like"),
        (["--to", "latest", "--partition", "0"], "a partition belongs to one topic: give one --topic, too"),
        ([], "Missing option '--to'"),
    ],
)
def test_misuse_is_told(warmlog: CommandLine, options: list[str], reason: str) -> None:
    done = warmlog("group", "reset", "g", *options)
    assert done.returncode == 2
    assert reason in " ".join(done.stderr.decode().split())


def test_what_is_not_there_is_told(warmlog: CommandLine, filled: str) -> None:
    assert "has no committed offsets: name the partitions" in error_line(
        warmlog("group", "reset", "none", "--to", "latest")
    )
    assert "'nowhere' does not exist" in error_line(reset(warmlog, "g", "nowhere"))
    assert "has partitions 0 to 1, not 7" in error_line(
        warmlog("group", "reset", "g", "--topic", filled, "--partition", "7", "--to", "latest")
    )
