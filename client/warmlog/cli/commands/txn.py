"""`warmlog txn list`, `describe` and `abort`."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from warmlog.cli.terminal import options
from warmlog.cli.terminal.exits import confirm
from warmlog.cli.terminal.output import counted, facts, line, note, table
from warmlog.cli.terminal.tables import Age, Cell, Count, duration_words, human_age

if TYPE_CHECKING:
    from warmlog import TransactionDescription

HEADINGS = ("transactional id", "state", "open for", "partitions", "producer", "epoch")


@click.command()
@click.option("--open", "is_open", is_flag=True, help="Only those with a transaction that has not ended.")
@options.client_options
def list_transactions(is_open: bool) -> None:
    """List all transactional ids, those of jobs included, and for how long their transactions are open."""
    found = options.run_admin(lambda admin: admin.list_transactions(only_open=is_open))
    options.print_result(list(map(document, found)), lambda: table(HEADINGS, list(map(row_of, found))))


def row_of(found: "TransactionDescription") -> tuple[Cell, ...]:
    return (
        found.transactional_id,
        found.state,
        _if_open(found, Age),
        Count(len(found.partitions)),
        found.producer_id if found.job is None else "",
        found.producer_epoch if found.job is None else "",
    )


@click.command()
@options.transactional_id_argument
@options.client_options
def describe(transactional_id: str) -> None:
    """Show a transactional id, its open transaction, and the partitions and groups that are part of it."""
    found = options.run_admin(lambda admin: admin.describe_transaction(transactional_id))

    def say() -> None:
        facts(
            [
                ("transactional id", found.transactional_id),
                ("state", found.state),
                *_owner_facts(found),
                ("timeout", duration_words(found.timeout_ms)),
                ("open for", str(_if_open(found, human_age)) or "not open"),
                ("groups", ", ".join(found.groups) or "none"),
            ]
        )
        if found.partitions:
            line()
            table(("topic", "partition"), [(each.topic, each.partition) for each in found.partitions])

    options.print_result(document(found), say)


def _owner_facts(found: "TransactionDescription") -> list[tuple[str, str]]:
    job = found.job
    if job is None:
        return [("producer", f"{found.producer_id}, epoch {found.producer_epoch}")]
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
    from msgspec.structs import asdict

    partitions = [asdict(each) | {"topic_id": str(each.topic_id)} for each in found.partitions]
    job = None if found.job is None else asdict(found.job)
    return {**asdict(found), "partitions": partitions, "job": job, "open_ms": open_ms(found)}


@click.command()
@options.transactional_id_argument
@options.certain_option
@options.client_options
def abort(transactional_id: str, is_certain: bool) -> None:
    """Abort the open transaction of a producer or a job that does not end it. Asks first, unless --yes is given.

    Its records are never delivered to readers of committed records, and its producer gets an error.
    """
    found = options.run_admin(lambda admin: admin.describe_transaction(transactional_id))
    what = f"the transaction of {transactional_id} in {counted(len(found.partitions), 'partition')}"
    confirm(f"Abort {what}?", f"the transaction of {transactional_id} was not aborted", is_certain=is_certain)
    options.run_admin(lambda admin: admin.abort_transaction(transactional_id))
    options.print_result({"transactional_id": transactional_id, "aborted": True}, lambda: note(f"aborted {what}"))
