"""Transactions: which are open, for how long, in which partitions; and the end of one that hangs."""

from collections.abc import Sequence

from nicegui import ui

from warmlog.cli.commands.txn import HEADINGS, row_of
from warmlog.console.page import Page, page_at
from warmlog.console.widgets import Values


@page_at("/transactions", every_s=5)
async def transactions(page: Page) -> None:
    async def fetch() -> Sequence[Values]:
        rows = []
        for each in await page.admin.list_transactions(only_open=only_open.value):
            partitions = ", ".join(f"{part.topic}-{part.partition}" for part in each.partitions)
            rows.append((*row_of(each), partitions, ", ".join(each.groups)))
        return rows

    only_open = ui.checkbox("Only open ones", value=True, on_change=page.refresh)
    page.change(
        "Abort",
        {"Transactional id": ""},
        lambda name: ["txn", "abort", name],
        page.admin.abort_transaction,
        "Readers of committed records do not get what it has written in its open transaction.",
    )
    page.table("By transactional id", (*HEADINGS, "in", "groups"), fetch)
