"""The command line of the simulations: so many seeds, on all cores."""

import argparse
import time
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import Pool

from unit.broker.coordinator.group.simulation.checks import Violation

Simulate = Callable[[int, int], None]
"""Takes a seed and the number of events."""


def finding(simulate: Simulate, events: int, seed: int) -> str | None:
    """Return what the simulation of `seed` finds."""
    try:
        simulate(seed, events)
    except (Violation, AssertionError) as error:
        return f"seed {seed}: {error or 'an assertion failed'}"
    return None


def main(simulate: Simulate, events: int, description: str) -> int:
    """0 if every invariant holds, 1 otherwise."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first one (default: 1)")
    options = parser.parse_args()
    started = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    with Pool() as pool:
        found = _printed(pool.imap_unordered(partial(finding, simulate, events), seeds, 10))
    print(f"{options.seeds} seeds of {events:,} events in {time.monotonic() - started:.0f} s: {found} findings")
    return 1 if found else 0


def _printed(findings: Iterable[str | None]) -> int:
    found = [text for text in findings if text is not None]
    for text in found:
        print(text)
    return len(found)
