"""`python -m unit.broker.coordinator.group.simulation`: so many seeds, on all cores."""

import argparse
import sys
import time
from collections.abc import Iterable
from multiprocessing import Pool

from unit.broker.coordinator.group.simulation.checks import Violation
from unit.broker.coordinator.group.simulation.world import simulate

EVENTS = 10_000


def finding(seed: int) -> str | None:
    """Return what the simulation of `seed` finds."""
    try:
        simulate(seed, EVENTS)
    except (Violation, AssertionError) as error:
        return f"seed {seed}: {error or 'an assertion failed'}"
    return None


def main() -> int:
    """0 if every invariant holds, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m unit.broker.coordinator.group.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first one (default: 1)")
    options = parser.parse_args()
    started = time.monotonic()
    with Pool() as pool:
        found = _printed(pool.imap_unordered(finding, range(options.first, options.first + options.seeds), 10))
    print(f"{options.seeds} seeds of {EVENTS:,} events in {time.monotonic() - started:.0f} s: {found} findings")
    return 1 if found else 0


def _printed(findings: Iterable[str | None]) -> int:
    found = [text for text in findings if text is not None]
    for text in found:
        print(text)
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
