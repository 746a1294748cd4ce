"""A process that dies at a chosen one of its steps on the disk, as seen by the next one that opens the directory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch


class Died(BaseException):
    """Nothing is done after this: no handler of ours may catch it and go on, except to let it through."""


class CrashPoint:
    """Counts the steps, and dies before the one with the number that it was given; -1 to only count."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.steps: list[str] = []
        self.has_died = False

    def before(self, step: str) -> None:
        if self.has_died or len(self.steps) == self.number:
            self.has_died = True
            raise Died(step)
        self.steps.append(step)


@contextmanager
def crash_at(number: int, *more: str) -> Iterator[CrashPoint]:
    """Every rename, unlink, sync and truncation of a file inside is a step, and each call of `os` in `more`.

    Once dead, none succeeds.
    """
    point = CrashPoint(number)

    def guarded(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guard(*arguments: Any, **options: Any) -> Any:
            point.before(f"{what} {arguments[:1]}")
            return call(*arguments, **options)

        return guard

    patches = [patch.object(Path, name, guarded(name, getattr(Path, name))) for name in ("rename", "replace", "unlink")]
    patches += [
        patch.object(os, name, guarded(name, getattr(os, name)))
        for name in ("fsync", "fdatasync", "ftruncate", "utime", "pwritev", *more)
    ]
    try:
        for one in patches:
            one.start()
        try:
            yield point
        except Died:
            assert point.has_died
    finally:
        for one in patches:
            one.stop()
