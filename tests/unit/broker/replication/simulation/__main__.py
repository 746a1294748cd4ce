"""`python -m unit.broker.replication.simulation`: so many seeds on all cores; `--shrink SEED`: what a finding takes."""

import sys

from unit.broker.coordinator.seeds import main
from unit.broker.replication.simulation.world import shrunk, simulate

EVENTS = 2_000

if __name__ == "__main__":
    if sys.argv[1:2] == ["--shrink"]:
        print(*shrunk(int(sys.argv[2]), EVENTS), sep="\n")
        sys.exit()
    sys.exit(main(simulate, EVENTS, __doc__ or ""))
