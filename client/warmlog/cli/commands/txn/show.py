"""`warmlog txn list` and `warmlog txn describe`."""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warmlog.cli.terminal.exits import ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, TransactionalId, run_admin
from warmlog.cli.terminal.output import counted, facts, json_line, line, table
from warmlog.cli.terminal.tables import Age, Cell, Count, duration_words, human_age

if TYPE_CHECKING:
    from warmlog import TransactionDescription


@ends_cleanly
def list_transactions(
    is_open: Annotated[bool, typer.Option("--open", help="Only those with a transaction that has not ended.")] = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """List all transactional ids, those of jobs included, and for how long their transactions are open.

    Ages are in milliseconds outside of terminals.
    """
    found = run_admin(broker, lambda admin: admin.list_transactions(only_open=is_open))
    if as_json:
        json_line([document(each) for each in found])
        return
    rows: list[tuple[Cell, ...]] = [
        (
            each.transactional_id,
            each.state,
            _if_open(each, Age),
            Count(len(each.partitions)),
            each.producer_id if each.job is None else "",
            each.producer_epoch if each.job is None else "",
        )
        for each in found
    ]
    table(("transactional id", "state", "open for", "partitions", "producer", "epoch"), rows)


@ends_cleanly
def describe(transactional_id: TransactionalId, broker: Broker = DEFAULT_BROKER, as_json: AsJson = False) -> None:
    """Show a transactional id, its open transaction, and the partitions and groups that are part of it."""
    found = run_admin(broker, lambda admin: admin.describe_transaction(transactional_id))
    if as_json:
        json_line(document(found))
        return
    facts(
        [
            ("transactional id", found.transactional_id),
            ("state", found.state),
            *([] if found.job is None else _job_facts(found)),
            *([] if found.job is not None else [("producer", f"{found.producer_id}, epoch {found.producer_epoch}")]),
            ("timeout", duration_words(found.timeout_ms)),
            ("open for", str(_if_open(found, human_age)) or "not open"),
            ("groups", ", ".join(found.groups) or "none"),
        ]
    )
    if found.partitions:
        line()
        table(("topic", "partition"), [(each.topic, each.partition) for each in found.partitions])


def _job_facts(found: "TransactionDescription") -> list[tuple[str, str]]:
    job = found.job
    assert job is not None
    committed = f"{job.committed_version}, {counted(job.committed_records, 'record')}"
    return [
        ("members", counted(job.members, "member")),
        ("version", str(job.version)),
        ("last committed version", committed if job.committed_version >= 0 else "none"),
    ]


def open_ms(found: "TransactionDescription") -> int | None:
    """Return for how long the transaction is open, by this machine's clock; None if none is open."""
    return None if found.began_ms < 0 else max(time.time_ns() // 1_000_000 - found.began_ms, 0)


def _if_open(found: "TransactionDescription", show: Callable[[int], Cell]) -> Cell:
    age_ms = open_ms(found)
    return "" if age_ms is None else show(age_ms)


def document(found: "TransactionDescription") -> dict[str, Any]:
    """Return a transaction for scripts."""
    partitions = [asdict(each) | {"topic_id": str(each.topic_id)} for each in found.partitions]
    return {**asdict(found), "partitions": partitions, "open_ms": open_ms(found)}
