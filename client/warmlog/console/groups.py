"""Consumer groups: which there are, who reads what, how far they are behind, and a reset that is shown before."""

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from shlex import quote

from nicegui import html

from warmlog.cli.commands.group import age_cell, partitions_text, total_lag
from warmlog.cli.terminal.exits import describe
from warmlog.cli.terminal.tables import Count, Instant, human_age
from warmlog.console import page as pages
from warmlog.console.page import Change, Facts, Link, Page, Values
from warmlog.errors import ApiError

REFRESH_S = 5.0
MAX_POINTS = 720
MAX_LINES = 20
"""Partitions that have a line of their own: those that are furthest behind."""


def add() -> None:
    pages.add("/groups", build_list)
    pages.add("/group", build_group, "Group")


async def build_list(page: Page) -> None:
    async def fetch() -> Sequence[Values]:
        groups = await page.admin.list_groups()
        try:
            lags = await page.admin.group_lags([each.name for each in groups], with_age=False)
        except ApiError:  # some topics of some groups may not be described
            lags = {}
        totals = {name: Count(total_lag(lag.values()).records) for name, lag in lags.items()}
        return [
            (Link(each.name, page.url("/group", name=each.name)), each.state, each.member_count, totals.get(each.name))
            for each in groups
        ]

    page.table("All groups", "Group,State,Members,Lag", fetch)
    page.start(REFRESH_S)


async def build_group(page: Page) -> None:
    name, admin = page.query.get("name", ""), page.admin
    html.h2(name)
    facts = Facts()
    in_records, in_seconds = pages.charts("Lag, records", "Lag, seconds")
    partitions = page.table("Partitions", "Topic,Partition,Committed,End,Lag,Behind,Member,Metadata,Error")
    members = page.table("Members", "Member,Client,Host,Reads,Gives up,Last heartbeat")
    points: defaultdict[str, deque[tuple[float, int, float]]] = defaultdict(lambda: deque(maxlen=MAX_POINTS))

    async def refresh() -> None:
        group, lags = await admin.describe_group(name), (await admin.group_lags([name]))[name]
        whole = total_lag(lags.values())
        is_assigned = not group.members or group.group_epoch == group.target_epoch
        behind = "" if whole.seconds is None else f", {human_age(round(whole.seconds * 1000))} behind"
        facts.show(
            state=group.state if is_assigned else f"{group.state}, a new assignment is due",
            members=str(len(group.members)),
            lag=f"{whole.records:,} records{behind}",
            assignor=group.assignor or "none",
        )
        readers = {tp: each.instance_id or each.member_id for each in group.members for tp in each.assigned}
        rows: list[Values] = []
        for tp in sorted({*lags, *readers}):
            topic, reader = Link(tp[0], page.url("/topic", name=tp[0])), readers.get(tp, "")
            if (lag := lags.get(tp)) is None:
                rows.append((topic, tp[1], *[None] * 4, reader, "", ""))
                continue
            error = "" if lag.error is None else describe(lag.error)
            figures = (lag.committed, lag.high_watermark, lag.records)
            counts = (None if each is None else Count(each) for each in figures)
            rows.append((topic, tp[1], *counts, age_cell(lag.seconds), reader, lag.metadata, error))
            if lag.records is not None:
                points[f"{tp[0]}-{tp[1]}"].append((time.time() * 1000, lag.records, lag.seconds or 0.0))
        partitions.show(rows)
        most = sorted(points, key=lambda each: -points[each][-1][1])[:MAX_LINES]
        in_records.draw({each: [point[:2] for point in points[each]] for each in most})
        in_seconds.draw({each: [(point[0], point[2]) for point in points[each]] for each in most})
        members.show(
            [
                (
                    each.instance_id or each.member_id,
                    each.client_id,
                    each.host,
                    partitions_text(each.assigned),
                    partitions_text(each.revoking),
                    Instant(each.last_heartbeat_ms),
                )
                for each in group.members
            ]
        )

    async def planned(to: str) -> str:
        steps = (await admin.reset_offsets(name, to)).values()
        return "\n".join(
            f"{each.topic}-{each.partition}: from {'nothing' if each.committed is None else each.committed} to "
            f"{each.offset}{f', {each.skipped:,} records are not read' if each.skipped else ''}"
            for each in steps
        )

    page.changes(
        Change(
            "Reset offsets",
            {"To: earliest, latest, an offset, +100, -100, -10m or a time": "earliest"},
            lambda to: f"group reset {quote(name)} --to {quote(to)} --execute",
            lambda to: admin.reset_offsets(name, to, dry_run=False),
            planned,
        ),
        Change(
            "Delete group",
            {},
            lambda: f"group delete {quote(name)}",
            lambda: admin.delete_groups([name]),
            f"The committed offsets of {name} are gone for ever.",
            "/groups",
        ),
    )
    page.on_refresh(refresh)
    page.start(REFRESH_S)
