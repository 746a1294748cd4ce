"""The first page: whether the broker is well, what goes in and out, its disks, its busiest topics, slow groups."""

from collections.abc import Sequence

from nicegui import ui

from warmlog.cli.commands.group import age_cell, total_lag
from warmlog.cli.terminal.tables import Count, Size, human_size
from warmlog.console import page as pages
from warmlog.console.page import Facts, Link, Page, Values
from warmlog.errors import ApiError

SPANS_S = {60: "1 minute", 600: "10 minutes", 3600: "1 hour"}
MOST = 10
"""Topics and groups that are shown."""
LAGS_EVERY = 5
"""Lag is asked for with every fifth sample: it takes a request for each group."""


def add() -> None:
    pages.add("/", build)


async def build(page: Page) -> None:
    history = page.session.history
    facts = Facts()
    span = ui.toggle(SPANS_S, value=600).props("no-caps")
    drawn = pages.charts("Records/s appended", "Bytes/s", "99 % of flushes within, ms", "Connections")

    async def show_history() -> None:
        points = history.within(int(span.value))
        ways = {"in": [(each.time_ms, each.in_bytes_per_s) for each in points]}
        ways["out"] = [(each.time_ms, each.out_bytes_per_s) for each in points]
        drawn[0].draw({"records/s": [(each.time_ms, each.records_per_s) for each in points]})
        drawn[1].draw(ways)
        drawn[2].draw({"ms": [(each.time_ms, each.flush_ms) for each in points]})
        drawn[3].draw({"connections": [(each.time_ms, each.connections) for each in points]})

    async def show_facts() -> None:
        info, status = await page.admin.broker_info(), history.last
        facts.show(broker=f"{info.node_id} at {info.address}, version {info.version}, cluster {info.cluster_id}")
        if status is None:
            facts.show(health=f"not shown: {page.session.status_error}")
            return
        problems = "; ".join(status.problems) or "no problem is known"
        facts.show(health=f"{'ready' if status.is_ready else 'not ready'}, {problems}")
        facts.show(connections=f"{status.connections:,} of {status.connections_limit:,}")
        if history.rates:
            last = history.rates[-1]
            ways = f"{human_size(round(last.in_bytes_per_s))}/s in, {human_size(round(last.out_bytes_per_s))}/s out"
            facts.show(now=f"{last.records_per_s:,.0f} records/s, {ways}")
        try:
            caching = (await page.admin.describe_broker())["write.caching"].value == "true"
        except (ApiError, KeyError):
            return
        facts.show(durability="from the page cache" if caching else "after fsync, unless a topic has write.caching")

    async def busiest() -> Sequence[Values]:
        return [
            (Link(name, page.url("/topic", name=name)), records, Size(into), Size(out))
            for name, records, into, out in history.busiest[:MOST]
        ]

    page.on_refresh(show_facts)
    page.on_refresh(show_history)
    span.on_value_change(show_history)
    page.table("Busiest topics", "Topic,Records/s,In/s,Out/s", busiest)
    page.table("Groups that fall behind", "Group,State,Lag,Behind", seldom(lambda: _slow_groups(page)))
    page.table("Disks", "Directory,State,Free,Total", seldom(lambda: _disks(page)))
    page.start()


def seldom(fetch: pages.Fetch) -> pages.Fetch:
    """Return what calls `fetch` at every LAGS_EVERY-th call, and returns what it has returned."""
    count = 0
    found: Sequence[Values] = []

    async def sometimes() -> Sequence[Values]:
        nonlocal count, found
        if count % LAGS_EVERY == 0:
            found = await fetch()
        count += 1
        return found

    return sometimes


async def _slow_groups(page: Page) -> Sequence[Values]:
    try:
        listed = {each.name: each for each in await page.admin.list_groups()}
        lags = await page.admin.group_lags(list(listed), with_age=False)
        records = {name: total_lag(lag.values()).records for name, lag in lags.items()}
        slow = sorted((name for name in records if records[name]), key=lambda name: -records[name])[:MOST]
        totals = {name: total_lag(lag.values()) for name, lag in (await page.admin.group_lags(slow)).items()}
    except ApiError:  # not all of it may be described
        return []
    return [
        (Link(name, page.url("/group", name=name)), listed[name].state, Count(lag.records), age_cell(lag.seconds))
        for name, lag in totals.items()
    ]


async def _disks(page: Page) -> Sequence[Values]:
    try:
        found = await page.admin.describe_log_dirs([])
    except ApiError:
        return []
    return [(each.path, each.error or "works", Size(each.usable_bytes), Size(each.total_bytes)) for each in found]
