"""The modules, folders and numbers that ARCHITECTURE and the page about Kafka name are those of the code."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from warmlog_broker.coordinator.framework.decision import VERSION, Key
from warmlog_broker.coordinator.group.decisions.records import OfGroup
from warmlog_broker.coordinator.transaction.decisions.records import OfId
from warmlog_broker.metadata.metadata_log import Entry
from warmlog_protocol.batch.header import MAGIC_COLUMNS, MAGIC_ROWS
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.messages.base import ApiKey

ROOT = Path(__file__).parents[2]
PACKAGES = [
    ROOT / path
    for path in ("broker/warmlog_broker", "client/warmlog", "protocol/warmlog_protocol", "protocol/warmlog_transport")
]
PAGES = ("ARCHITECTURE.md", "docs/reference/kafka-rules.md")
_PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]+)(?:\.py|/)?(?:\.[A-Za-z_.]+)?`")
"""A name with a slash, such as `storage/log/log.py`, `coordinator/group/` or `metadata/store.Store.commit`."""


def _exists(name: str) -> bool:
    places = [*PACKAGES, *(folder for package in PACKAGES for folder in package.iterdir() if folder.is_dir())]
    return any((place / name).is_dir() or (place / name).with_suffix(".py").is_file() for place in places) or any(
        (place / f"{name}{ending}").exists() for place in (ROOT, ROOT / "protocol") for ending in ("", ".py", ".md")
    )


@pytest.mark.parametrize("page", PAGES)
def test_each_path_on_the_page_is_a_module_or_folder(page: str) -> None:
    named = set(_PATH.findall((ROOT / page).read_text("utf-8")))
    assert len(named) > 20
    assert sorted(name for name in named if not _exists(name)) == []


OURS = 1000
"""Numbers of Kafka's are below."""


def _listed(row_begins: str) -> tuple[set[int], int | None]:
    """The numbers in the row of that beginning, and the one that it calls free."""
    text = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith(f"| {row_begins}")]
    assert len(rows) == 1, f"rows that begin with {row_begins!r}: {rows}"
    in_use, free = rows[0].split("|")[2:4]
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", in_use):
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers, int(free) if free.strip().isdigit() else None


def _tags(base: type[Key] | type[Entry]) -> set[int]:
    return {each.__struct_config__.tag for each in base.__subclasses__()}


@pytest.mark.parametrize(
    ("row", "used"),
    [
        ("entries of `metadata.log`", _tags(Entry)),
        ("keys of `__groups`", _tags(OfGroup)),
        ("keys of `__transactions`", _tags(OfId)),
        ("version of the values in both", {VERSION}),
        ("keys of requests of our own", {key for key in ApiKey if key >= OURS}),
        ("error codes of our own", {code for code in ErrorCode if code >= OURS}),
        ("magic of record batches", {MAGIC_ROWS, MAGIC_COLUMNS}),
    ],
)
def test_the_list_has_the_numbers_of_the_code(row: str, used: Iterable[int]) -> None:
    listed, free = _listed(row)
    assert listed == {int(number) for number in used}
    assert free is not None
    assert free > max(listed)
