"""`python -m cluster.chaos`: runs with the seeds SEED, SEED+1, … until so many faults have happened.

Every other run has ordinary disks, and leaves out what needs those whose power can be cut.
"""

import argparse
import logging
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from cluster.chaos.nemesis import FAULTS, NEED_POWER_DISKS, possible
from cluster.chaos.run import Outcome, run

FAULTS_A_RUN = 15


def main() -> int:
    """0 when everything was as promised, else 1."""
    parser = argparse.ArgumentParser(prog="python -m cluster.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=60, metavar="N", help="how many faults (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first run (default: 1)")
    parser.add_argument("--kinds", default="", help=f"which, by commas, of {' '.join(FAULTS)} (default: all)")
    parser.add_argument("--spark", action="store_true", help="in the first run streams of Spark write, too")
    options = parser.parse_args()
    for clients in ("warmlog", "aiokafka"):
        logging.getLogger(clients).setLevel(logging.CRITICAL)  # they tell of every connection that is lost
    named = [name for name in options.kinds.split(",") if name]
    if unknown := sorted(set(named) - set(FAULTS)):
        parser.error(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    findings = done = 0
    seed = options.seed
    while done < options.faults:
        directory = Path(tempfile.mkdtemp(prefix="warmlog-chaos-"))
        count = min(FAULTS_A_RUN, options.faults - done)
        kinds = named or [name for name in possible() if seed % 2 or name not in NEED_POWER_DISKS]
        outcome = _run(directory, seed, count, kinds, with_spark=options.spark and not done)
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


def _run(directory: Path, seed: int, faults: int, kinds: list[str], *, with_spark: bool) -> Outcome:
    """As `run`; one that could not go on is a finding."""
    try:
        return run(directory, seed=seed, faults=faults, kinds=kinds, with_spark=with_spark)
    except Exception:
        return Outcome(seed, [traceback.format_exc()])


if __name__ == "__main__":
    sys.exit(main())
