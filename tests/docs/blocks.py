"""The fenced code blocks of a page, and whether a test may run them.

A line `<!-- not run: REASON -->` directly before a fence says why its block is only checked for its syntax.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

RUN = ("python", "sh")
NOT_CODE = ("text", "ini", "dockerfile", "yaml", "toml", "json")

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*)(?: .*)?$")
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+) -->$")


@dataclass(frozen=True)
class Block:
    """One block; `line` is the number of its first line in the page."""

    language: str
    text: str
    line: int
    reason: str
    """Why it is not run; empty if it is."""

    @property
    def is_run(self) -> bool:
        return self.language in RUN and not self.reason


def blocks_of(page: Path) -> list[Block]:
    """The blocks of `page`, in order. ValueError for a fence without a language or without an end."""
    return list(_blocks(page))


def page_name(page: Path) -> str:
    """The name of `page` from the root of the project on."""
    return page.relative_to(ROOT).as_posix()


def _blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    number = 0
    while number < len(lines):
        found = _FENCE.match(lines[number])
        number += 1
        if found is None:
            continue
        if not found["language"]:
            raise ValueError(f"{page}:{number}: a block of code without a language")
        before = lines[number - 2].strip() if number > 1 else ""
        skipped = _NOT_RUN.match(before)
        indent = len(found["indent"])
        first, text = number + 1, []
        while lines[number].strip() != "```":
            text.append(lines[number][indent:])
            number += 1
            if number == len(lines):
                raise ValueError(f"{page}:{first - 1}: a block of code without an end")
        number += 1
        yield Block(
            found["language"], "".join(f"{each}\n" for each in text), first, skipped["reason"] if skipped else ""
        )
