"""The fenced code blocks of a page, and whether a test may run them.

A line `<!-- not run: REASON -->` directly before a fence says why its block is only checked for its syntax.
"""

import random
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

RUN = ("python", "sh")
NOT_CODE = ("text", "ini", "dockerfile", "yaml", "toml", "json", "properties", "java", "go", "js")

ADDRESS = "127.0.0.1:7400"
"""That of the broker, as pages name it."""
_FIXED = re.compile(r"\b127\.0\.0\.1:[1-9]\d*")
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


class Addresses:
    """The addresses in blocks as a test runs them: the broker's, and for each other port one that is free here.

    A page may start a broker itself, and another program of this machine may have the port that it names.
    """

    def __init__(self, broker: str) -> None:
        self._own = {ADDRESS: broker}

    def put_into(self, text: str) -> str:
        return _FIXED.sub(lambda found: self._of(found[0]), text)

    def _of(self, address: str) -> str:
        if address not in self._own:
            self._own[address] = f"127.0.0.1:{_free_port()}"
        return self._own[address]


def _free_port() -> int:
    """A port below those that the system gives to clients, which could take it before the page does."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as candidate, suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            return port


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
