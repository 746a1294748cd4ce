"""Patterns of subscriptions: regular expressions that are matched against whole names in linear time.

They come from clients, and `re` takes exponential time for some. So the usual syntax is compiled to an automaton of
bounded size: characters, `.`, classes, `\\d \\w \\s` and escaped punctuation, groups, `|`, `* + ? {m,n}`, also lazy
ones, `^` at the beginning and `$` at the end. Lookaround, references and flags are refused. What is accepted means the
same as in `re.fullmatch`.
"""

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from warmlog_protocol.errors import InvalidRegularExpression

MAX_STEPS = 1000
"""Parts of a pattern, each counted as often as it is repeated: bounds the time that a character takes."""
MAX_CACHED_MOVES = 10_000

_ATOM = re.compile(r"\\[dDwWsS]|\\[^\w\s]|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[\](){}*+?|^$]", re.DOTALL)
_QUANTIFIER = re.compile(r"(?:(?P<sign>[*+?])|\{(?P<least>\d{1,4})?(?P<range>,(?P<most>\d{1,4})?)?\})\??")
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True)
class _Alternatives:
    sequences: "Sequence[Sequence[_Repeated]]"


@dataclass(frozen=True, slots=True)
class _Repeated:
    """`most` is None if there is no limit."""

    what: re.Pattern[str] | _Alternatives
    least: int = 1
    most: int | None = 1


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> "Pattern":
    """Return the compiled pattern; InvalidRegularExpression."""
    try:
        return Pattern(_Parser(pattern).parse())
    except (re.error, ValueError, FutureWarning) as error:
        raise InvalidRegularExpression(
            f"the pattern {pattern!r} is not one that this broker takes: {error}; use a simpler one"
        ) from None


class _Parser:
    """Reads a pattern; ValueError and re.error for what is not valid or not supported."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0

    def parse(self) -> _Alternatives:
        """Return the whole pattern."""
        if self._text.startswith("^"):
            self._at = 1
        result = self._alternatives()
        if self._at < len(self._text):
            raise ValueError(f"unexpected {self._text[self._at]!r} at position {self._at}")
        return result

    def _alternatives(self) -> _Alternatives:
        sequences: list[list[_Repeated]] = [[]]
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._text[self._at] == "|":
                self._at += 1
                sequences.append([])
            elif self._text[self._at :] == "$":
                self._at += 1
            else:
                sequences[-1].append(self._repeated())
        return _Alternatives(sequences)

    def _repeated(self) -> _Repeated:
        what = self._group() if self._text[self._at] == "(" else self._atom()
        found = _QUANTIFIER.match(self._text, self._at)
        if not found or not (found["sign"] or found["least"] or found["range"]):
            return _Repeated(what)
        self._at = found.end()
        if found["sign"]:
            return _Repeated(what, *_SIGNS[found["sign"]])
        least = int(found["least"] or 0)
        most = least if not found["range"] else int(found["most"]) if found["most"] else None
        if most is not None and most < least:
            raise ValueError(f"{found[0]} repeats at least {least} and at most {most} times")
        return _Repeated(what, least, most)

    def _group(self) -> _Alternatives:
        self._at += 1
        if self._text.startswith("?:", self._at):
            self._at += 2
        result = self._alternatives()
        if not self._text.startswith(")", self._at):
            raise ValueError("a parenthesis is not closed")
        self._at += 1
        return result

    def _atom(self) -> re.Pattern[str]:
        found = _ATOM.match(self._text, self._at)
        if not found:
            raise ValueError(f"unexpected {self._text[self._at]!r} at position {self._at}")
        self._at = found.end()
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            return re.compile(found[0], re.DOTALL)


class Pattern:
    """A regular expression as an automaton, which begins in state 0. ValueError if it is too large."""

    def __init__(self, expression: _Alternatives) -> None:
        self._edges: list[list[tuple[re.Pattern[str] | None, int]]] = [[]]
        """By state: where it leads with a character that matches, or without one (None)."""
        self._steps = 0
        self._end = self._append(expression, 0)
        self._first = self._closure([0])
        self._moves: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def fullmatch(self, name: str) -> bool:
        """Return whether the whole of `name` matches."""
        states = self._first
        for character in name:
            move = (states, character)
            if move not in self._moves:
                if len(self._moves) >= MAX_CACHED_MOVES:
                    self._moves.clear()
                self._moves[move] = self._moved(states, character)
            states = self._moves[move]
        return self._end in states

    def _moved(self, states: Iterable[int], character: str) -> frozenset[int]:
        edges = (edge for state in states for edge in self._edges[state])
        return self._closure(to for accepted, to in edges if accepted is not None and accepted.match(character))

    def _closure(self, states: Iterable[int]) -> frozenset[int]:
        """Return the states that are reached without a further character."""
        reached = set(states)
        left = list(reached)
        while left:
            for accepted, to in self._edges[left.pop()]:
                if accepted is None and to not in reached:
                    reached.add(to)
                    left.append(to)
        return frozenset(reached)

    def _append(self, what: re.Pattern[str] | _Alternatives, start: int) -> int:
        """Add what matches `what` after state `start`, and return the state after it."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise ValueError(f"with its repetitions it has more than {MAX_STEPS} parts")
        end = self._state()
        if isinstance(what, re.Pattern):
            self._edges[start].append((what, end))
            return end
        for sequence in what.sequences:
            last = self._linked(start, self._state())
            for part in sequence:
                last = self._append_repeated(part, last)
            self._linked(last, end)
        return end

    def _append_repeated(self, part: _Repeated, start: int) -> int:
        last = start
        for _ in range(part.least):
            last = self._append(part.what, last)
        if part.most is None:
            loop = self._linked(last, self._state())
            self._linked(self._append(part.what, loop), loop)
            return self._linked(loop, self._state())
        end = self._state()
        for _ in range(part.most - part.least):
            self._linked(last, end)
            last = self._append(part.what, last)
        return self._linked(last, end)

    def _state(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def _linked(self, start: int, end: int) -> int:
        self._edges[start].append((None, end))
        return end
