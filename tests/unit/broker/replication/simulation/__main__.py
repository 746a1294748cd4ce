"""`python -m unit.broker.replication.simulation`: so many seeds, on all cores."""

import sys

from unit.broker.coordinator.seeds import main
from unit.broker.replication.simulation.world import simulate

EVENTS = 2_000

if __name__ == "__main__":
    sys.exit(main(simulate, EVENTS, __doc__ or ""))
