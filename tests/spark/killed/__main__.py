"""`python -m spark.killed`: streams in groups of ten, each with kills by a seed of its own."""

import argparse
import sys
import tempfile
from pathlib import Path

from spark.killed.run import run

STREAMS_A_RUN = 10
KILLS_A_RUN = 10


def main() -> int:
    """Return 0 if each topic was equal to its input."""
    parser = argparse.ArgumentParser(prog="python -m spark.killed", description=__doc__)
    parser.add_argument("--streams", type=int, default=50, help="how many streams (default: 50)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first run (default: 1)")
    options = parser.parse_args()
    left, seed, finding_count = options.streams, options.seed, 0
    while left > 0:
        count = min(STREAMS_A_RUN, left)
        with tempfile.TemporaryDirectory(prefix="warmlog-streams-") as workspace:
            outcome = run(Path(workspace), seed=seed, streams=count, kills=KILLS_A_RUN)
        print(outcome, *outcome.findings, sep="\n  ", flush=True)
        finding_count += len(outcome.findings)
        left -= count
        seed += 1
    print(f"{options.streams} streams, {finding_count} findings")
    return 1 if finding_count else 0


if __name__ == "__main__":
    sys.exit(main())
