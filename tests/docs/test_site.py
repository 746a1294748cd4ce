"""The site: built without a warning, with nothing from other sites, and with pages made from the code."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warmlog
from docs.blocks import PAGES, ROOT, page_name
from warmlog.cli.app import COMMANDS, FAMILIES

sys.path.insert(0, str(ROOT / "tools" / "site"))
import hooks

DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"(?P<address>(?:https?:)?//[^\"]+)\"")


def test_every_error_has_a_remedy_and_its_own_section() -> None:
    names = {error.__name__ for error in hooks.error_classes()}
    assert set(hooks.tomllib.loads(hooks.REMEDIES.read_text())) == names
    assert re.findall(r"^## (\w+)$", hooks.errors(), re.MULTILINE) == sorted(names)


def test_the_page_of_the_python_api_has_what_can_be_imported_as_it_says() -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    shown = [line.removeprefix("::: ").rpartition(".") for line in page.splitlines() if line.startswith("::: ")]
    elsewhere = ("ranges.arrow_reader", "warmlog_transport.options", "blocking.", "serializers", "points", "testing.")
    for module, _, name in shown:
        assert hasattr(warmlog, name) or module.removeprefix("warmlog.").startswith(elsewhere), name
    aliases = {"Durability", "Placed", "PlacedMany", "Sent", "serializers"}
    assert set(warmlog.__all__) - set(warmlog.errors.__all__) - aliases <= {name for _, _, name in shown}


def test_every_message_of_the_broker_at_warning_or_above_has_a_remedy() -> None:
    sections = hooks.tomllib.loads(hooks.LOG_REMEDIES.read_text()).values()
    told = [message for section in sections for message in section]
    assert sorted(told) == sorted(hooks.logged_messages())
    assert "| … IS OFFLINE: its flush failed: … | critical | Look at the disk" in hooks.log_messages()


def test_the_page_of_the_command_line_has_every_command_and_option() -> None:
    page = hooks.command_line()
    for name in COMMANDS:
        assert f"\n## warmlog {name}\n" in page
    for family, (_, members) in FAMILIES.items():
        for member in members:
            assert f"\n## warmlog {family} {member}\n" in page
    assert "--key-separator" in page
    assert "\x1b" not in page


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_between_pages_lead_to_files(page: Path) -> None:
    for match in LINK.finditer(page.read_text()):
        target = match["target"]
        path = (page.parent / target).resolve()
        is_generated = path.is_relative_to(DOCS) and path.relative_to(DOCS).as_posix() in hooks.PAGES
        assert "://" in target or is_generated or path.exists(), f"{page}: {target}"


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="`make docs` installs what builds the site")
def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        found = [match["address"] for match in LOADED.finditer(page.read_text())]
        assert not found, f"{page}: {found}"
        assert page.name == "404.html" or f"warmlog {warmlog.__version__}" in page.read_text()
