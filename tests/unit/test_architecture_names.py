"""The modules and folders that ARCHITECTURE and the page about Kafka's rules name exist: both are read as maps."""

import re
from pathlib import Path

import pytest

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
