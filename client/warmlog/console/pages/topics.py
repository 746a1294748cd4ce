"""The list of topics, and one topic: its partitions, segments and settings, and what can be changed."""

from collections.abc import Sequence

from nicegui import html, ui

from warmlog.cli.commands.topic.describe import (
    SEGMENT_HEADINGS,
    SETTING_HEADINGS,
    retention_words,
    segment_rows,
    setting_rows,
)
from warmlog.cli.terminal.exits import describe
from warmlog.cli.terminal.tables import Count, Size, human_size
from warmlog.console.page import Page, options, page_at, pairs
from warmlog.console.widgets import Facts, Link, Table, Values
from warmlog.errors import ApiError

MAX_SEGMENTS = 200


@page_at("/topics", every_s=5)
async def topics(page: Page) -> None:
    async def create(name: str, partitions: str, settings: str) -> None:
        await page.admin.create_topic(name, partitions=int(partitions), configs=pairs(settings))

    async def fetch() -> Sequence[Values]:
        rows: dict[str, list[int]] = {}
        for (topic, _), log in (await page.admin.describe_partitions(internal=internal.value)).items():
            figures = (0, 0, 1)
            if not isinstance(log, ApiError):
                figures = (log.high_watermark - log.log_start_offset, log.size_bytes, 0)
            rows[topic] = [a + b for a, b in zip(rows.get(topic, [0] * 4), (1, *figures), strict=True)]
        return [
            (Link(name, page.url("/topic", name=name)), Count(row[0]), Count(row[1]), Size(row[2]), row[3])
            for name, row in sorted(rows.items())
            if (wanted.value or "").lower() in name.lower()
        ]

    with ui.row().classes("items-center"):
        wanted = ui.input("Name contains", on_change=page.refresh).props("dense clearable")
        internal = ui.checkbox("Internal topics", on_change=page.refresh)
    page.change(
        "Create topic",
        {"Name": "", "Partitions": "1", "Settings, NAME=VALUE …": ""},
        lambda name, n, text: ["topic", "create", name, "--partitions", n, *options("--config", text)],
        create,
    )
    page.table("All topics", ("topic", "partitions", "records", "size", "offline"), fetch)


@page_at("/topic", "Topic", every_s=5)
async def topic(page: Page) -> None:
    name = page.query.get("name", "")
    html.h2(name)
    with ui.row():
        html.a("Records", href=page.url("/records", topic=name))
        html.a("Index", href=page.url("/index", topic=name))
    facts = Facts()
    ends = ("log_start_offset", "last_stable_offset", "high_watermark", "log_end_offset")
    columns = ("partition", "log start", "last stable", "high watermark", "log end", "size", "segments", "error")
    partitions = Table("Partitions", columns)
    settings = Table("Settings", SETTING_HEADINGS)
    _changes(page, name)
    segments = Table("Segments", SEGMENT_HEADINGS)

    async def refresh() -> None:
        topic = await page.admin.describe_topic(name)
        found = await page.admin.describe_partitions([name], max_segments=MAX_SEGMENTS)
        logs = {number: log for (_, number), log in found.items() if not isinstance(log, ApiError)}
        rows: list[Values] = []
        for (_, number), log in found.items():
            link = Link(number, page.url("/records", topic=name, partition=number))
            if isinstance(log, ApiError):
                rows.append((link, *[None] * 6, describe(log)))
            else:
                offsets = [Count(getattr(log, each)) for each in ends]
                rows.append((link, *offsets, Size(log.size_bytes), Count(log.segment_count), ""))
        partitions.show(rows)
        facts.show(
            {
                "records": f"{sum(log.high_watermark - log.log_start_offset for log in logs.values()):,}",
                "size": human_size(sum(log.size_bytes for log in logs.values())),
                "retention": retention_words({setting: config.value for setting, config in topic.configs.items()}),
                "durability": str(topic.durability),
                "id": str(topic.topic_id),
            }
        )
        settings.show(setting_rows(topic))
        segments.show(segment_rows((number, log.segments) for number, log in logs.items()))

    page.on_refresh(refresh)


def _changes(page: Page, topic: str) -> None:
    admin = page.admin

    async def delete_records(partition: str, offset: str) -> None:
        for result in (await admin.delete_records({(topic, int(partition)): int(offset)})).values():
            if isinstance(result, ApiError):
                raise result

    with ui.row():
        page.change(
            "Change settings",
            {"Set, NAME=VALUE …": "", "Unset, NAME …": ""},
            lambda given, unset: ["topic", "alter", topic, *options("--set", given), *options("--unset", unset)],
            lambda given, unset: admin.alter_topic(topic, set=pairs(given), unset=unset.split()),
        )
        page.change(
            "Add partitions",
            {"Partitions in all": ""},
            lambda total: ["topic", "add-partitions", topic, "--total", total],
            lambda total: admin.add_partitions(topic, int(total)),
            "Partitions cannot be removed, and records of a key may go to another one than before.",
        )
        page.change(
            "Delete records",
            {"Partition": "0", "Before the offset": ""},
            lambda number, offset: ["topic", "delete-records", topic, "--partition", number, "--offset", offset],
            delete_records,
            lambda number, offset: f"The records of {topic}-{number} before offset {offset} are gone for ever.",
        )
        page.change(
            "Delete topic",
            {},
            lambda: ["topic", "delete", topic],
            lambda: admin.delete_topic(topic),
            f"Topic {topic} and all its records are gone for ever.",
            "/topics",
        )
