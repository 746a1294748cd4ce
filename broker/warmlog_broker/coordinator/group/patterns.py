"""Patterns of subscriptions: regular expressions in the syntax of RE2, which match whole names of topics.

They come from clients. RE2 matches in linear time and bounded memory; MAX_PROGRAM bounds what a name takes, about
2 ms at most, and `time_limit_s` what a pattern takes with all names. Nothing of RE2's memory is kept between two uses
of a pattern.
"""

import asyncio
import importlib
import re
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

from warmlog_broker.coordinator.group.decisions.state import Pattern
from warmlog_broker.coordinator.group.decisions.subscriptions import Subscriptions
from warmlog_broker.runtime.tasks import Slices
from warmlog_protocol.errors import InvalidRegularExpression

MAX_MEMORY_BYTES = 1 << 20
"""What RE2 may use for one pattern; it slows down before it takes more."""
MAX_PROGRAM = 1024
"""Instructions of a compiled pattern: a name of 249 letters takes up to 2 ms with so many."""
FIXED_TIME_S = 0.1
STEP_S = 0.0005
TIME_PER_NAME_S = 20e-6
"""Some ten times of what the usual patterns take."""

_OPEN_RANGE = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\{,(?=\d+\})", re.DOTALL)


def time_limit_s(names: int) -> float:
    """Return how much processor time a pattern may take to be matched against so many names."""
    return FIXED_TIME_S + names * TIME_PER_NAME_S


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return the function that tells whether a name of a topic matches. InvalidRegularExpression.

    The first call imports RE2, in some milliseconds. Up to MAX_MEMORY_BYTES are used until `forget_compiled`.
    """
    try:
        re2: Any = importlib.import_module("re2")
    except ImportError:
        raise InvalidRegularExpression(
            "this broker cannot match patterns, as the package google-re2 is not installed: install it, or subscribe "
            "to topics by name"
        ) from None
    options = re2.Options()
    options.max_mem = MAX_MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    options.dot_nl = True
    options.encoding = re2.Options.Encoding.LATIN1  # names of topics are ASCII: a character is one byte
    try:
        # {,n} is {0,n} to Python, as which clients check the pattern, and literal to RE2.
        compiled = re2.compile(_OPEN_RANGE.sub(lambda found: found[1] or "{0,", pattern).encode("latin-1"), options)
    except UnicodeEncodeError:
        raise _refused(pattern, "names of topics have ASCII characters only") from None
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        raise _refused(pattern, reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
    if compiled.programsize > MAX_PROGRAM:
        raise _refused(pattern, f"it is too large, {compiled.programsize} instructions; {MAX_PROGRAM} are allowed")
    return lambda name: compiled.fullmatch(name.encode()) is not None


def forget_compiled() -> None:
    """Free the memory of compiled patterns, which RE2's package keeps for 128 of them."""
    importlib.import_module("re2").purge()


def matching(pattern: str, names: Sequence[str]) -> Generator[None, None, list[str]]:
    """Return those of `names` that match the pattern; yields about every STEP_S. InvalidRegularExpression."""
    matches = compile_pattern(pattern)
    found: list[str] = []
    count, took_s = 0, 0.0
    try:
        while count < len(names):
            began_s, until_s = time.thread_time(), time.perf_counter() + STEP_S
            while count < len(names) and time.perf_counter() < until_s:
                if matches(names[count]):
                    found.append(names[count])
                count += 1
            took_s += time.thread_time() - began_s
            if took_s > time_limit_s(count):
                raise _refused(pattern, f"it took {took_s:.3f} s for the first {count} names of topics")
            yield
    finally:
        forget_compiled()
    return found


def _refused(pattern: str, reason: str) -> InvalidRegularExpression:
    return InvalidRegularExpression(
        f"the pattern {pattern!r} is not one that this broker takes: {reason}; use a simpler one"
    )


class Patterns:
    """Matches the patterns that members use: against all topics when they join, later against new ones."""

    def __init__(self, subscriptions: Subscriptions, slices: Slices) -> None:
        self._subscriptions = subscriptions
        self._slices = slices
        self._matching = asyncio.Lock()

    def find(self, text: str) -> Pattern | None:
        """Return the pattern if it is known what it stands for. InvalidRegularExpression if that was refused."""
        pattern = self._subscriptions.pattern(text)
        if pattern.problem:
            raise InvalidRegularExpression(pattern.problem)
        return pattern if pattern.is_known else None

    async def match(self, pattern: Pattern) -> None:
        """Compare the pattern with the topics that it was not compared with; what goes wrong is its `problem`."""
        async with self._matching:
            if pattern.problem or (pattern.is_known and not pattern.unmatched):
                return
            topics = [topic for _, topic in self._subscriptions.topics(pattern.unmatched)]
            found: list[str] = []
            try:
                found = await self._slices.run(matching(pattern.text, [topic.name for topic in topics]))
            except InvalidRegularExpression as error:
                pattern.problem = str(error)
            self._subscriptions.compared(pattern, topics, frozenset(found))
