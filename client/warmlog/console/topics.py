"""The list of topics, and one topic: its partitions, segments and settings, and what can be changed."""

from collections.abc import Sequence
from shlex import quote

from nicegui import html, ui

from warmlog.cli.commands.topic.describe import origin, retention_words
from warmlog.cli.terminal.exits import describe
from warmlog.cli.terminal.tables import Count, Size, human_size, setting_text
from warmlog.console import page as pages
from warmlog.console.page import Change, Facts, Link, Page, Values, options, pairs
from warmlog.errors import ApiError

REFRESH_S = 5.0
MAX_SEGMENTS = 200


def add() -> None:
    pages.add("/topics", build_list)
    pages.add("/topic", build_topic, "Topic")


async def build_list(page: Page) -> None:
    async def create(name: str, partitions: str, settings: str) -> None:
        await page.admin.create_topic(name, partitions=int(partitions), configs=pairs(settings))

    async def fetch() -> Sequence[Values]:
        rows: dict[str, list[int]] = {}
        for (topic, _), log in (await page.admin.describe_partitions(internal=internal.value)).items():
            is_offline = isinstance(log, ApiError)
            records = 0 if isinstance(log, ApiError) else log.high_watermark - log.log_start_offset
            figures = (1, records, 0 if isinstance(log, ApiError) else log.size_bytes, is_offline)
            rows[topic] = [a + b for a, b in zip(rows.get(topic, (0, 0, 0, 0)), figures, strict=True)]
        return [
            (Link(name, page.url("/topic", name=name)), Count(row[0]), Count(row[1]), Size(row[2]), row[3])
            for name, row in sorted(rows.items())
            if (wanted.value or "").lower() in name.lower()
        ]

    with ui.row().classes("items-center"):
        wanted, internal = ui.input("Name contains").props("dense clearable"), ui.checkbox("Internal topics")
    fields = {"Name": "", "Partitions": "1", "Settings, NAME=VALUE …": ""}
    page.changes(
        Change(
            "Create topic",
            fields,
            lambda name, n, text: f"topic create {quote(name)} --partitions {n}{options('--config', text)}",
            create,
        )
    )
    page.table("All topics", "Topic,Partitions,Records,Size,Offline", fetch)
    refresh = page.start(REFRESH_S)
    wanted.on_value_change(refresh)
    internal.on_value_change(refresh)


async def build_topic(page: Page) -> None:
    name = page.query.get("name", "")
    html.h2(name)
    with ui.row():
        html.a("Records", href=page.url("/records", topic=name))
        html.a("Index", href=page.url("/index", topic=name))
    facts = Facts()
    partitions = page.table("Partitions", "Partition,Log start,Last stable,High watermark,Log end,Size,Segments,Error")
    settings = page.table("Settings", "Setting,Value,Origin,What it does")
    _changes(page, name)
    segments = page.table("Segments", "Partition,Base offset,Size,Index entries")

    async def refresh() -> None:
        topic = await page.admin.describe_topic(name)
        found = await page.admin.describe_partitions([name], max_segments=MAX_SEGMENTS)
        logs = {number: log for (_, number), log in found.items() if not isinstance(log, ApiError)}
        rows: list[Values] = []
        for (_, number), log in found.items():
            link = Link(number, page.url("/records", topic=name, partition=number))
            if isinstance(log, ApiError):
                rows.append((link, *[None] * 6, describe(log)))
                continue
            ends = (log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset)
            rows.append((link, *map(Count, ends), Size(log.size_bytes), Count(log.segment_count), ""))
        partitions.show(rows)
        facts.show(
            records=f"{sum(log.high_watermark - log.log_start_offset for log in logs.values()):,}",
            size=human_size(sum(log.size_bytes for log in logs.values())),
            retention=retention_words({setting: config.value for setting, config in topic.configs.items()}),
            durability=str(topic.durability),
            id=str(topic.topic_id),
        )
        settings.show(
            [
                (setting, setting_text(setting, config.value), origin(config), config.description)
                for setting, config in sorted(topic.configs.items())
            ]
        )
        segments.show(
            [
                (number, Count(each.base_offset), Size(each.size_bytes), Count(each.index_entries))
                for number, log in logs.items()
                for each in log.segments
            ]
        )

    page.on_refresh(refresh)
    page.start(REFRESH_S)


def _changes(page: Page, topic: str) -> None:
    admin, name = page.admin, quote(topic)

    async def alter(given: str, unset: str) -> None:
        await admin.alter_topic(topic, set=pairs(given), unset=unset.split())

    async def delete_records(partition: str, offset: str) -> None:
        for result in (await admin.delete_records({(topic, int(partition)): int(offset)})).values():
            if isinstance(result, ApiError):
                raise result

    page.changes(
        Change(
            "Change settings",
            {"Set, NAME=VALUE …": "", "Unset, NAME …": ""},
            lambda given, unset: f"topic alter {name}{options('--set', given)}{options('--unset', unset)}",
            alter,
        ),
        Change(
            "Add partitions",
            {"Partitions in all": ""},
            lambda total: f"topic add-partitions {name} --total {total}",
            lambda total: admin.add_partitions(topic, int(total)),
            "Partitions cannot be removed, and records of a key may go to another one than before.",
        ),
        Change(
            "Delete records",
            {"Partition": "0", "Before the offset": ""},
            lambda partition, offset: f"topic delete-records {name} --partition {partition} --offset {offset}",
            delete_records,
            lambda partition, offset: f"The records of {topic}-{partition} before offset {offset} are gone for ever.",
        ),
        Change(
            "Delete topic",
            {},
            lambda: f"topic delete {name}",
            lambda: admin.delete_topic(topic),
            f"Topic {topic} and all its records are gone for ever.",
            "/topics",
        ),
    )
