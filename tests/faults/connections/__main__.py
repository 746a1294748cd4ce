"""`python -m faults.connections`: so many connections to a broker of its own."""

import argparse
import sys
import tempfile
from pathlib import Path

from faults.connections import stalled
from faults.connections.run import run


def main() -> int:
    """0 when all were served or cut as they should be, and everything was given back; 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m faults.connections", description=__doc__)
    parser.add_argument("--idle", type=int, default=4000, metavar="N", help="held and served (default: 4,000)")
    parser.add_argument("--half-open", type=int, default=1000, metavar="N", help="to be cut (default: 1,000)")
    parser.add_argument("--stalled", type=int, default=12, metavar="N", help="half-sent requests (default: 12)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warmlog-connections-") as workspace:
        crowd = run(Path(workspace) / "crowd", idle=options.idle, half_open=options.half_open)
        print(crowd)
        beside = stalled.run(Path(workspace) / "stalled", stalled=options.stalled)
        print(beside)
    findings = [*crowd.findings, *beside.findings]
    for finding in findings:
        print(f"  {finding}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
