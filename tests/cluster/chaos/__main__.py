"""`python -m cluster.chaos`: runs with the seeds SEED, SEED+1, … until so many faults have happened."""

import argparse
import logging
import shutil
import sys
import tempfile
from pathlib import Path

from cluster.chaos.nemesis import FAULTS
from cluster.chaos.run import run

FAULTS_A_RUN = 15


def main() -> int:
    """0 when everything was as promised, else 1."""
    parser = argparse.ArgumentParser(prog="python -m cluster.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=60, metavar="N", help="how many faults (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first run (default: 1)")
    parser.add_argument("--kinds", default="", help=f"which, by commas, of {' '.join(FAULTS)} (default: all)")
    options = parser.parse_args()
    logging.getLogger("warmlog").setLevel(logging.CRITICAL)  # clients tell of every connection that is lost
    kinds = [name for name in options.kinds.split(",") if name] or list(FAULTS)
    if unknown := sorted(set(kinds) - set(FAULTS)):
        parser.error(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    findings = done = 0
    seed = options.seed
    while done < options.faults:
        directory = Path(tempfile.mkdtemp(prefix="warmlog-chaos-"))
        count = min(FAULTS_A_RUN, options.faults - done)
        outcome = run(directory, seed=seed, faults=count, kinds=kinds)
        print(outcome, flush=True)
        for line in outcome.findings:
            print(f"  {line}", flush=True)
        if outcome.findings:
            print(f"  the brokers' directories, and what they logged: {directory}")
        else:
            shutil.rmtree(directory)
        findings += len(outcome.findings)
        done, seed = done + count, seed + 1
    print(f"{done} faults, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
