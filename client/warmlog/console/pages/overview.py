"""The first page: whether the broker is well, what goes in and out, its disks, its busiest topics, slow groups."""

from collections.abc import Sequence

from nicegui import ui

from warmlog.cli.commands.group import age_cell
from warmlog.cli.commands.status import facts_of_state, most_behind
from warmlog.cli.terminal.tables import Count, Size, human_size
from warmlog.console.page import Page, allowed, page_at
from warmlog.console.widgets import Facts, Link, Values, charts

SPANS_S = {60: "1 minute", 600: "10 minutes", 3600: "1 hour"}
MOST = 10
"""Topics and groups that are shown."""
SELDOM = 5
"""Lag and disks are asked for with every fifth sample: lag takes a request for each group."""
CHARTS = {
    "Records/s appended": {"records/s": "records_per_s"},
    "Bytes/s": {"in": "in_bytes_per_s", "out": "out_bytes_per_s"},
    "99 % of flushes within, ms": {"ms": "flush_ms"},
    "Connections": {"connections": "connections"},
}
"""Which of the rates each chart draws."""


@page_at("/")
async def overview(page: Page) -> None:
    history, admin = page.session.history, page.admin
    facts = Facts()
    span = ui.toggle(SPANS_S, value=600)
    drawn = charts(*CHARTS)

    async def show_history() -> None:
        points = history.within(int(span.value))
        for chart, lines in zip(drawn, CHARTS.values(), strict=True):
            chart.draw({name: [(each.time_ms, getattr(each, rate)) for each in points] for name, rate in lines.items()})

    async def show_facts() -> None:
        info, status = await admin.broker_info(), history.last
        shown = {"broker": f"{info.node_id} at {info.address}, version {info.version}, cluster {info.cluster_id}"}
        if status is None:
            facts.show({**shown, "health": f"not shown: {page.session.status_error}"})
            return
        problems = "; ".join(status.problems) or "no problem is known"
        shown["health"] = f"{'ready' if status.is_ready else 'not ready'}, {problems}"
        shown |= facts_of_state(status)
        if history.rates:
            last = history.rates[-1]
            into, out = human_size(round(last.in_bytes_per_s)), human_size(round(last.out_bytes_per_s))
            shown["now"] = f"{last.records_per_s:,.0f} records/s, {into}/s in, {out}/s out"
        caching = (await allowed(admin.describe_broker(), {})).get("write.caching")
        if caching is not None:
            fsync = "after fsync, unless a topic has write.caching"
            shown["durability"] = "from the page cache" if caching.value == "true" else fsync
        facts.show(shown)

    async def busiest() -> Sequence[Values]:
        return [
            (Link(each.name, page.url("/topic", name=each.name)), each.records_per_s, *map(Size, each[2:]))
            for each in history.busiest[:MOST]
        ]

    async def slow_groups() -> Sequence[Values]:
        found = await allowed(most_behind(admin, await admin.list_groups(), MOST), [])
        return [
            (Link(name, page.url("/group", name=name)), state, Count(records), age_cell(seconds))
            for name, state, _, records, seconds in found
            if records
        ]

    async def disks() -> Sequence[Values]:
        found = await allowed(admin.describe_log_dirs([]), [])
        return [(each.path, each.error or "works", Size(each.usable_bytes), Size(each.total_bytes)) for each in found]

    page.on_refresh(show_facts)
    page.on_refresh(show_history)
    span.on_value_change(show_history)
    page.table("Busiest topics", ("topic", "records/s", "in/s", "out/s"), busiest)
    page.table("Groups that fall behind", ("group", "state", "lag", "behind"), slow_groups, SELDOM)
    page.table("Disks", ("directory", "state", "free", "total"), disks, SELDOM)
