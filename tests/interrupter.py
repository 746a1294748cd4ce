"""KeyboardInterrupt between any two steps of a client's code: deterministic, and at each point that there is."""

import random
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


def interrupt_everywhere(
    run: Callable[[Callable[[Callable[[], Any]], Any]], None],
    modules: Collection[ModuleType],
    count: int,
    *,
    seed: int = 0,
    spares: Callable[[FrameType], bool] = lambda _: False,
) -> None:
    """Let `run` make its calls by what it is given: `count` times, interrupted somewhere else each time, or twice."""
    dice = random.Random(seed)
    counter = Interrupter(modules, spares=spares)
    run(counter.call)
    interruptions = 0
    for number in range(count):
        first = dice.randrange(counter.steps * number // count, counter.steps * (number + 1) // count) + 1
        second = [first + dice.choice([1, 3, 10, 30, 100, 300, 1000])] if number % 2 else []
        interrupter = Interrupter(modules, [first, *second], spares=spares)
        try:
            run(interrupter.call)
        except BaseException as error:
            error.add_note(f"interrupted at steps {[first, *second]} of {counter.steps}: {interrupter.told}")
            raise
        interruptions += len(interrupter.told)
    assert interruptions > count  # some runs take fewer steps, as answers come together


class Interrupter:
    """Counts the steps (bytecode instructions) that code of `modules` takes in this thread, and interrupts some.

    CPython itself lets a signal handler run at fewer places than between any two instructions, but does not promise
    which.
    """

    def __init__(
        self,
        modules: Collection[ModuleType],
        at: Collection[int] = (),
        *,
        spares: Callable[[FrameType], bool] = lambda _: False,
    ) -> None:
        """KeyboardInterrupt is raised before each step whose number is in `at`; those of `spares` are not counted."""
        self.steps = 0
        self.told: list[str] = []
        """Where it has interrupted: file and line."""
        self._at = frozenset(at)
        self._spares = spares
        self._files = {module.__file__ for module in modules}

    def call(self, function: Callable[[], T]) -> T:
        """What `function` returns; called again whenever it was interrupted."""
        while True:
            sys.settrace(self._enter)
            try:
                return function()
            except KeyboardInterrupt as interruption:
                self.told.append(str(interruption))
            finally:
                sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode" and not self._spares(frame):
            self.steps += 1
            if self.steps in self._at:
                raise KeyboardInterrupt(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return self._step
