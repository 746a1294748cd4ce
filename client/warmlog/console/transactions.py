"""Transactions: which are open, for how long, in which partitions; and the end of one that hangs."""

from collections.abc import Sequence
from shlex import quote

from nicegui import ui

from warmlog.cli.commands.txn import open_ms
from warmlog.cli.terminal.tables import Age
from warmlog.console import page as pages
from warmlog.console.page import Change, Page, Values

REFRESH_S = 5.0


def add() -> None:
    pages.add("/transactions", build)


async def build(page: Page) -> None:
    async def fetch() -> Sequence[Values]:
        return [
            (
                each.transactional_id,
                each.state,
                None if (age_ms := open_ms(each)) is None else Age(age_ms),
                each.producer_id,
                each.producer_epoch,
                ", ".join(f"{part.topic}-{part.partition}" for part in each.partitions),
                ", ".join(each.groups),
            )
            for each in await page.admin.list_transactions(only_open=only_open.value)
        ]

    only_open = ui.checkbox("Only open ones", value=True)
    page.changes(
        Change(
            "Abort",
            {"Transactional id": ""},
            lambda name: f"txn abort {quote(name)}",
            page.admin.abort_transaction,
            lambda name: f"Readers of committed records do not get what {name} has written in its open transaction.",
        )
    )
    page.table("By transactional id", "Id,State,Open for,Producer,Epoch,Partitions,Groups", fetch)
    only_open.on_value_change(page.start(REFRESH_S))
