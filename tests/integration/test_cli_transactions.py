"""`warmlog txn`, and what other commands say about open transactions, against a real broker."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from broker_process import BrokerProcess
from broker_thread import BrokerThread
from integration.command_line import CommandLine, Done, at_terminal, error_line, succeeded
from transactional_client import JobMemberClient
from warmlog.blocking import Admin, Consumer, Producer
from warmlog.errors import InvalidTxnState, TransactionAbortable, TransactionalIdNotFound
from warmlog_broker.coordinator.transaction.decisions.records import IdKey
from warmlog_broker.storage.log.validation import sealed
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.messages import ACKS_LEADER


@pytest.fixture
def filled(warmlog: CommandLine, topic: str) -> str:
    """A topic of two partitions; the first has 3 records."""
    succeeded(warmlog("topic", "create", topic, "--partitions", "2"))
    succeeded(warmlog("produce", topic, "--partition", "0", given=b"value\n" * 3))
    return topic


@pytest.fixture
def hanging(broker: BrokerProcess, filled: str) -> Iterator[str]:
    """A transactional id whose open transaction has a record in the first partition; the test aborts it."""
    name = f"id-{uuid4().hex}"
    with Producer(broker.address, transactional_id=name) as producer:
        with pytest.raises(TransactionAbortable), producer.transaction():  # noqa: PT012 - a transaction
            producer.send(filled, b"open", partition=0).result()
            yield name
        with producer.transaction():
            producer.send(filled, b"next", partition=1)


def document(done: Done) -> Any:
    return json.loads(succeeded(done))


def abort(warmlog: CommandLine, name: str) -> None:
    assert document(warmlog("txn", "abort", name, "--yes", "--json")) == {"transactional_id": name, "aborted": True}


def test_a_transaction_is_described(broker: BrokerProcess, warmlog: CommandLine, filled: str, hanging: str) -> None:
    (listed,) = [each for each in document(warmlog("txn", "list", "--json")) if each["transactional_id"] == hanging]
    described = document(warmlog("txn", "describe", hanging, "--json"))
    assert listed.keys() == described.keys()
    assert (described["state"], described["groups"], described["job"]) == ("ongoing", [], None)
    assert [(each["topic"], each["partition"]) for each in described["partitions"]] == [(filled, 0)]
    assert 0 <= described["open_ms"] < 600_000
    row = next(line for line in succeeded(warmlog("txn", "list")).decode().splitlines() if line.startswith(hanging))
    assert row.split("\t")[1::2] == ["ongoing", "1", str(described["producer_epoch"])]
    assert f"{filled}\t0" in succeeded(warmlog("txn", "describe", hanging)).decode()
    exit_code, _ = at_terminal(warmlog, "txn", "abort", hanging, typed=b"n\n")
    assert (exit_code, document(warmlog("txn", "describe", hanging, "--json"))["state"]) == (1, "ongoing")
    abort(warmlog, hanging)
    assert document(warmlog("txn", "describe", hanging, "--json"))["state"] == "empty"
    still_open = document(warmlog("txn", "list", "--open", "--json"))
    assert hanging not in [each["transactional_id"] for each in still_open]
    assert "InvalidTxnState" not in error_line(warmlog("txn", "abort", hanging, "--yes"))
    with Admin(broker.address) as admin:
        with pytest.raises(InvalidTxnState):
            admin.abort_transaction(hanging)
        for ask in (admin.abort_transaction, admin.describe_transaction):
            with pytest.raises(TransactionalIdNotFound):
                ask("none")
        with pytest.raises(TypeError, match="the transactional id must be a str"):
            admin.describe_transaction(7)  # type: ignore[arg-type]


def test_only_open_ones_are_listed_if_asked_for(broker: BrokerProcess, warmlog: CommandLine, hanging: str) -> None:
    """A response with all ids of a broker that has hundreds of thousands would be too large."""
    idle = f"id-{uuid4().hex}"
    with Producer(broker.address, transactional_id=idle) as producer, producer.transaction():
        pass
    with Admin(broker.address) as admin:
        assert {idle, hanging} <= {each.transactional_id for each in admin.list_transactions()}
        found = {each.transactional_id for each in admin.list_transactions(only_open=True)}
    assert hanging in found
    assert idle not in found
    abort(warmlog, hanging)


def test_a_job_is_described_with_its_members(broker: BrokerProcess, warmlog: CommandLine, filled: str) -> None:
    name = f"job-{uuid4().hex}"
    with JobMemberClient(broker.address, name, 7) as first, JobMemberClient(broker.address, name, 7) as second:
        for member, partition in ((first, 0), (second, 1)):
            assert not member.join()
            member.send(filled, b"x", partition=partition)
        described = document(warmlog("txn", "describe", name, "--json"))
        assert (described["state"], described["producer_id"], described["groups"]) == ("ongoing", -1, [])
        assert described["job"] == {"version": 7, "committed_version": -1, "committed_records": 0, "members": 2}
        assert [(each["topic"], each["partition"]) for each in described["partitions"]] == [(filled, 0), (filled, 1)]
        first.commit_job(first.member, records=1)
    with Admin(broker.address) as admin:
        ended = admin.describe_transaction(name)
        assert ended.job is not None
        assert (ended.state, ended.job.committed_version, ended.job.members) == ("empty", 7, 0)
    text = succeeded(warmlog("txn", "describe", name)).decode()
    assert "members\t0 members" in text
    assert "last committed version\t7, 1 record" in text
    row = next(line for line in succeeded(warmlog("txn", "list")).decode().splitlines() if line.startswith(name))
    assert row.split("\t")[4:] == ["", ""], "a job has no producer of its own"


def test_the_topic_names_what_holds_readers_back(warmlog: CommandLine, filled: str, hanging: str) -> None:
    first, second = document(warmlog("topic", "describe", filled, "--json"))["partitions"]
    (holder,) = first["open_transactions"]
    assert (holder["transactional_id"], holder["state"], holder["open_ms"] >= 0) == (hanging, "ongoing", True)
    assert second["open_transactions"] == []
    last = succeeded(warmlog("topic", "describe", filled)).decode().splitlines()[-1].split("\t")
    assert last[:4] == ["0", "3", hanging, "ongoing"]
    _, lines = at_terminal(warmlog, "topic", "describe", filled)
    assert any("committed end" in each for each in lines)
    abort(warmlog, hanging)
    first, _ = document(warmlog("topic", "describe", filled, "--json"))["partitions"]
    assert first["open_transactions"] == []


def test_consume_says_that_it_waits_for_a_transaction(warmlog: CommandLine, filled: str, hanging: str) -> None:
    done = warmlog("consume", filled, "--committed", "--to", "latest")
    assert succeeded(done) == b"value\n" * 3
    assert (
        f"not read, as transactions are open: {filled}-0 from offset 3 on: {hanging} (ongoing".encode() in done.stderr
    )
    waits = warmlog.start("consume", filled, "--committed", "--timeout", "60s", "--count", "4")
    try:
        assert waits.stderr is not None
        told = waits.stderr.readline().decode()
        assert f"waiting for the end of transactions: {filled}-0 from offset 3 on: {hanging}" in told
        abort(warmlog, hanging)
        succeeded(warmlog("produce", filled, "--partition", "0", given=b"after\n"))
        printed, _ = waits.communicate(timeout=180)
        assert printed == b"value\n" * 3 + b"after\n"
    finally:
        waits.kill()
        waits.communicate()
    assert b"not read" not in warmlog("consume", filled, "--committed", "--to", "latest").stderr


def test_dump_decodes_transactions_and_offsets_that_wait_for_them(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, transaction_coordinator_partitions=1) as broker:
        warmlog = CommandLine(broker.address)
        succeeded(warmlog("topic", "create", "t"))
        succeeded(warmlog("produce", "t", given=b"x\n" * 7))
        topic_id = document(warmlog("topic", "describe", "t", "--json"))["topic_id"]
        with (
            Consumer(broker.address, topics=["t"], group="g", start="earliest", commit="manual") as consumer,
            Producer(broker.address, transactional_id="writer") as producer,
            producer.transaction() as transaction,
        ):
            producer.send("t", b"y")
            transaction.commit_offsets(consumer, next(consumer.batches()))
    kinds: dict[str, list[tuple[Any, Any]]] = {}
    files = [each for each in tmp_path.glob("__*/*.log") if each.stat().st_size]
    for line in succeeded(warmlog("log", "dump", "--print-data-log", *files)).decode().splitlines():
        if " key: " in line:
            key, _, value = line.partition(" key: ")[2].partition(" payload: ")
            found = json.loads(key)
            kinds.setdefault(found.pop("kind"), []).append((found, json.loads(value) if value else None))
    states = [value["status"] for key, value in kinds["id"] if key == {"transactional_id": "writer"}]
    assert states[0] == "empty"
    assert "committing" in states
    assert {"transactional_id": "writer", "topic_id": topic_id, "partition": 0, "slot": 0} in [
        key for key, _ in kinds["partition"]
    ]
    pending = [value["offsets"] for key, value in kinds["pending"] if key["group"] == "g"]
    assert [(each["topic_id"], each["partition"], each["value"]["offset"]) for each in pending[0]] == [(topic_id, 0, 7)]
    assert pending[-1] == []
    assert "0 findings" in succeeded(warmlog("log", "verify", tmp_path)).decode()


def test_verify_finds_a_record_of_a_coordinator_that_cannot_be_read(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, transaction_coordinator_partitions=1) as broker:
        with Producer(broker.address, transactional_id="writer"):
            pass
        key = msgspec.msgpack.encode(IdKey("writer"))
        batch = sealed(encode_batch([b"\x91\x01", b"\x91\x09"], keys=[key, key], timestamps_ms=0))
        broker.in_loop(lambda it: it.topics.partition("__transactions", 0).append(batch, ACKS_LEADER, None, now_ms=0))
    done = CommandLine("")("log", "verify", "--json", tmp_path)
    (found,) = json.loads(done.stdout)["findings"]
    assert done.returncode == 1
    assert (found["offset"], found["expected"]) == (1, "a record that this topic may have")
