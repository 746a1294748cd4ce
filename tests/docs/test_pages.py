"""Every block of code in README and docs runs, twice in a row, against a real broker; the others are checked."""

import json
import re
import socket
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from docs.blocks import NOT_CODE, PAGES, RUN, Addresses, Block, blocks_of, page_name
from docs.running import RUNNABLE, WITH_SPARK, run_pages

BLOCKS = {page: blocks_of(page) for page in PAGES}
NOT_RUN = [(page, block) for page, blocks in BLOCKS.items() for block in blocks if block.reason]


@pytest.mark.parametrize("page", [page for page in RUNNABLE if page not in WITH_SPARK], ids=page_name)
def test_the_blocks_of_a_page_run_twice_in_a_row(page: Path, tmp_path: Path) -> None:
    run_pages([page], tmp_path)


@pytest.mark.parametrize(("page", "block"), NOT_RUN, ids=[f"{page_name(page)}-{block.line}" for page, block in NOT_RUN])
def test_a_block_that_is_not_run_has_a_valid_syntax(page: Path, block: Block) -> None:
    _check_syntax(page, block)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_what_is_not_code_has_a_valid_syntax(page: Path) -> None:
    for block in BLOCKS[page]:
        assert block.language in (*RUN, *NOT_CODE), f"{page}:{block.line}: unknown language {block.language}"
        if block.language in CHECKS:
            _check_syntax(page, block)


MOST_COLUMNS, MOST_WORDS = 100, 75


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_lines_of_code_fit_into_their_boxes(page: Path) -> None:
    """At 1,366 px; `make test-site` measures it."""
    for block in BLOCKS[page]:
        for number, line in enumerate(block.text.splitlines(), start=block.line):
            assert len(line) <= MOST_COLUMNS, f"{page}:{number}: {len(line)} columns"


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "reference"], ids=page_name)
def test_a_paragraph_has_one_thing_to_say(page: Path) -> None:
    """The usual case first; exceptions are a list, or a note of their own."""
    text = re.sub(r"^ *```.*?^ *```", "\n", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n(?= *(?:-|\d+\.|\|) )", text):
        words = len(paragraph.split())
        assert words <= MOST_WORDS or paragraph.startswith("|"), f"{page}: {words} words: {paragraph[:60]}"


DELETED = re.compile(r"(?:rm -r\S*|(?:topic|group) delete|delete_topic\(|delete_group\() *[\"']?([\w./-]+)")


@pytest.mark.parametrize("page", RUNNABLE, ids=page_name)
def test_what_a_page_deletes_is_its_own(page: Path) -> None:
    """Readers type what several pages say in one directory and against one broker."""
    text = "\n".join(block.text for block in BLOCKS[page] if block.is_run)
    others = "\n".join(block.text for each in PAGES if each != page for block in BLOCKS[each])
    for name in DELETED.findall(text):
        own = name.partition("/")[0]
        assert len(re.findall(rf"(?<![\w-]){re.escape(own)}(?![\w-])", text)) > 1, f"{name} is not made here"
        assert not re.findall(rf"(?<![\w-]){re.escape(own)}(?![\w-])", others), f"{name} is of another page, too"


def test_a_block_that_runs_has_no_port_that_another_program_of_the_machine_may_have() -> None:
    page = next(page for page in RUNNABLE if page.stem == "operators-guide")
    text = "\n".join(block.text for block in BLOCKS[page] if block.is_run)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = Addresses(f"127.0.0.1:{taken.getsockname()[1]}")
        assert addresses.put_into(text) == addresses.put_into(text), "a port is the same in each block"
        named = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", text)}
        used = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", addresses.put_into(text))}
        assert len(used) == len(named) > 1
        assert not named & used
        for port in used:
            socket.create_server(("127.0.0.1", port)).close()


def test_what_is_not_run_is_counted(tell: Callable[[str], None]) -> None:
    run = sum(block.is_run for blocks in BLOCKS.values() for block in blocks)
    reasons = Counter(block.reason for _, block in NOT_RUN)
    listed = "; ".join(f"{count}: {why}" for why, count in sorted(reasons.items()))
    tell(f"{run} blocks run, {len(NOT_RUN)} do not ({listed})")
    assert run > 2 * len(NOT_RUN)


def _check_syntax(page: Path, block: Block) -> None:
    try:
        CHECKS.get(block.language, str)(block.text)
    except Exception as error:
        raise AssertionError(f"{page}:{block.line}: {error}") from error


def _check_shell(text: str) -> None:
    done = subprocess.run(["bash", "-n", "-c", text], stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()


CHECKS: dict[str, Callable[[str], object]] = {
    "python": lambda text: compile(text, "block", "exec"),
    "sh": _check_shell,
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}
