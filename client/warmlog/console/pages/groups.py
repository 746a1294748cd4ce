"""Consumer groups: which there are, who reads what, how far they are behind, and a reset that is shown before."""

import time
from collections import defaultdict, deque
from collections.abc import Sequence

from nicegui import html, ui

from warmlog.cli.commands.group import (
    MEMBER_HEADINGS,
    PARTITION_HEADINGS,
    facts_of,
    member_row,
    partition_rows,
    total_lag,
)
from warmlog.cli.terminal.exits import describe
from warmlog.cli.terminal.tables import Count
from warmlog.console.page import Page, allowed, page_at
from warmlog.console.widgets import Facts, Link, Table, Values, charts

MAX_POINTS = 720
"""Of each line: an hour."""
MAX_LINES = 20
"""Partitions that have a line of their own: those that are furthest behind."""


@page_at("/groups", every_s=5)
async def groups(page: Page) -> None:
    async def fetch() -> Sequence[Values]:
        found = await page.admin.list_groups()
        lags = await allowed(page.admin.group_lags([each.name for each in found], with_age=False), {})
        totals = {name: Count(total_lag(lag.values()).records) for name, lag in lags.items()}
        return [
            (Link(each.name, page.url("/group", name=each.name)), each.state, each.member_count, totals.get(each.name))
            for each in found
        ]

    page.table("All groups", ("group", "state", "members", "lag"), fetch)


@page_at("/group", "Group", every_s=5)
async def group(page: Page) -> None:
    name, admin = page.query.get("name", ""), page.admin
    html.h2(name)
    facts = Facts()
    in_records, in_seconds = charts("Lag, records", "Lag, seconds")
    partitions = Table("Partitions", (*PARTITION_HEADINGS, "error"))
    members = Table("Members", MEMBER_HEADINGS)
    points: defaultdict[str, deque[tuple[float, int, float]]] = defaultdict(lambda: deque(maxlen=MAX_POINTS))

    async def refresh() -> None:
        found, lags = await admin.describe_group(name), (await admin.group_lags([name]))[name]
        facts.show(facts_of(found, lags))
        errors = {tp: describe(lag.error) for tp, lag in lags.items() if lag.error is not None}
        partitions.show(
            [
                (Link(topic, page.url("/topic", name=topic)), number, *row, errors.get((topic, number), ""))
                for topic, number, *row in partition_rows(found, lags)
            ]
        )
        members.show(list(map(member_row, found.members)))
        for (topic, number), lag in lags.items():
            if lag.records is not None:
                points[f"{topic}-{number}"].append((time.time() * 1000, lag.records, lag.seconds or 0.0))
        most = sorted(points, key=lambda each: -points[each][-1][1])[:MAX_LINES]
        in_records.draw({each: [point[:2] for point in points[each]] for each in most})
        in_seconds.draw({each: [point[::2] for point in points[each]] for each in most})

    async def planned(to: str) -> str:
        steps = (await admin.reset_offsets(name, to)).values()
        return "\n".join(
            f"{each.topic}-{each.partition}: from {'nothing' if each.committed is None else each.committed} to "
            f"{each.offset}{f', {each.skipped:,} records are not read' if each.skipped else ''}"
            for each in steps
        )

    with ui.row():
        page.change(
            "Reset offsets",
            {"To: earliest, latest, an offset, +100, -100, -10m or a time": "earliest"},
            lambda to: ["group", "reset", name, "--to", to, "--execute"],
            lambda to: admin.reset_offsets(name, to, dry_run=False),
            planned,
        )
        page.change(
            "Delete group",
            {},
            lambda: ["group", "delete", name],
            lambda: admin.delete_groups([name]),
            f"The committed offsets of {name} are gone for ever.",
            "/groups",
        )
    page.on_refresh(refresh)
