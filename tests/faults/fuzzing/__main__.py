"""`python -m faults.fuzzing`: so many mutated frames against a broker of its own."""

import argparse
import sys
import tempfile
from pathlib import Path

from faults.fuzzing.run import run


def main() -> int:
    """0 when the broker took no harm, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m faults.fuzzing", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, metavar="N", help="how many (default: 1,000,000)")
    parser.add_argument("--seed", type=int, default=1, help="what decides which (default: 1)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warmlog-fuzzing-") as workspace:
        outcome = run(Path(workspace) / "data", seed=options.seed, frames=options.frames)
    print(outcome)
    for finding in outcome.findings:
        print(f"  {finding}")
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
