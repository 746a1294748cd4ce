"""The site in a Chromium, opened from files as `make docs` says: `make test-site`."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chromium import CHROMIUM, launched
from docs.blocks import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None or importlib.util.find_spec("material") is None, reason="needs Chromium: make test-site"
    ),
]

DESKTOP, PHONE = {"width": 1366, "height": 900}, {"width": 390, "height": 844}
CUT = """boxes => boxes.filter(box => box.scrollWidth > box.clientWidth).map(box => box.textContent.slice(0, 60))"""

FOUND = {
    "acl": "rights",
    "avro": "from-kafka-clients",
    "consumer lag": "group-tools",
    "csv": "recipes",
    "dead letter": "recipes",
    "exactly once": "exactly-once",
    "kafka-console-consumer": "from-kafka-clients",
    "kcat": "from-kafka-clients",
    "mirrormaker": "coming-from-kafka",
    "poison pill": "recipes",
    "prometheus": "monitoring",
    "protobuf": "from-kafka-clients",
    "rebalance": "groups",
    "replay yesterday": "recipes",
    "replication": "cluster",
    "retention.ms": "settings",
    "schema registry": "from-kafka-clients",
    "tombstone": "compacted",
    "web ui": "console",
}
"""What people who know Kafka search for, and a page that must be among the first three."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=120)
    return target


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with launched() as browser:
        yield browser


def pages_of(site: Path) -> list[Path]:
    return [page for page in sorted(site.rglob("*.html")) if page.stem != "404"]


def test_no_code_is_cut_on_a_desktop_and_no_page_scrolls_sideways(site: Path, chromium: Any) -> None:
    wide, narrow = (chromium.new_page(viewport=size) for size in (DESKTOP, PHONE))
    cut: dict[str, list[str]] = {}
    for path in pages_of(site):
        name = path.relative_to(site).with_suffix("").as_posix()
        for page in (wide, narrow):
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} scrolls"
        cut[name] = wide.locator(".md-content pre > code").evaluate_all(CUT)
        programs = narrow.locator(".md-content .highlight:not(.language-text) pre > code")
        assert programs.evaluate_all(CUT) == [], f"{name}: programs wrap on a phone"
    assert {name: boxes for name, boxes in cut.items() if boxes} == {}


def test_drawings_are_shown(site: Path, chromium: Any) -> None:
    page = chromium.new_page(viewport=DESKTOP)
    drawn = 0
    for path in pages_of(site):
        page.goto(path.as_uri())
        images = page.locator(".md-content img")
        drawn += images.count()
        assert images.evaluate_all("all => all.every(image => image.complete && image.naturalWidth > 0)"), path
    assert drawn > 5


@pytest.mark.parametrize("words", FOUND)
def test_the_search_finds_the_words_of_kafka_without_a_server(site: Path, chromium: Any, words: str) -> None:
    page = chromium.new_page(viewport=DESKTOP)
    try:
        page.goto((site / "index.html").as_uri())
        page.locator("input.md-search__input").press_sequentially(words)
        results = page.locator(".md-search-result__item > a")
        results.first.wait_for()
        found = results.evaluate_all("all => all.map(link => new URL(link.href).pathname)")
        assert FOUND[words] in list(dict.fromkeys(Path(path).stem for path in found))[:3]
    finally:
        page.close()
