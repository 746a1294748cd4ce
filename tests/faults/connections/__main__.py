"""`python -m faults.connections`: so many connections to a broker of its own."""

import argparse
import sys
import tempfile
from pathlib import Path

from faults.connections.run import run


def main() -> int:
    """0 when all were served or cut as they should be, and everything was given back; 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m faults.connections", description=__doc__)
    parser.add_argument("--idle", type=int, default=4000, metavar="N", help="held and served (default: 4,000)")
    parser.add_argument("--half-open", type=int, default=1000, metavar="N", help="to be cut (default: 1,000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warmlog-connections-") as workspace:
        outcome = run(Path(workspace) / "data", idle=options.idle, half_open=options.half_open)
    print(outcome)
    for finding in outcome.findings:
        print(f"  {finding}")
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
