"""`python -m faults.history`: runs with the seeds SEED, SEED+1, … until so many faults have happened."""

import argparse
import logging
import shutil
import sys
import tempfile
from pathlib import Path

from faults.history.nemesis import FAULTS, NEED_POWER_DISK, ON_REQUEST
from faults.history.run import run
from faults.power.powered import why_not

FAULTS_A_RUN = 25
MAX_REASONS = 10


def main() -> int:
    """0 when everything was as promised, 1 when not, 2 when a fault cannot be had here."""
    parser = argparse.ArgumentParser(prog="python -m faults.history", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, metavar="N", help="how many faults (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first run (default: 1)")
    parser.add_argument(
        "--kinds", default="", help=f"which, by commas, of {' '.join(FAULTS)} (default: all but freeze)"
    )
    options = parser.parse_args()
    for name in ("warmlog", "aiokafka"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # clients tell of every connection that is lost
    kinds = [name for name in options.kinds.split(",") if name] or [name for name in FAULTS if name not in ON_REQUEST]
    unknown = sorted(set(kinds) - set(FAULTS))
    if unknown:
        parser.error(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    missing = why_not()
    if missing and not NEED_POWER_DISK.isdisjoint(kinds):
        if options.kinds:
            print(f"{options.kinds}: {missing}", file=sys.stderr)
            return 2
        print(f"without {', '.join(sorted(NEED_POWER_DISK))}: {missing}", file=sys.stderr)
        kinds = [name for name in kinds if name not in NEED_POWER_DISK]
    return _run_all(options.faults, options.seed, kinds)


def _run_all(fault_count: int, seed: int, kinds: list[str]) -> int:
    finding_count = done = 0
    while done < fault_count:
        count = min(FAULTS_A_RUN, fault_count - done)
        workspace = Path(tempfile.mkdtemp(prefix="warmlog-history-"))
        outcome = run(workspace, seed=seed, fault_count=count, faults=kinds)
        print(outcome, flush=True)
        if outcome.findings:
            print(f"  journals of processes: {workspace}")
        else:
            shutil.rmtree(workspace)
        for line in (*outcome.findings, *(f"given up: {reason}" for reason in outcome.reasons[:MAX_REASONS])):
            print(f"  {line}", flush=True)
        finding_count += len(outcome.findings)
        done += count
        seed += 1
    print(f"{done} faults, {finding_count} findings")
    return 1 if finding_count else 0


if __name__ == "__main__":
    sys.exit(main())
