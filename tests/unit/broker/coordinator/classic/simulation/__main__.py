"""`python -m unit.broker.coordinator.classic.simulation`: so many seeds, on all cores."""

import sys

from unit.broker.coordinator.classic.simulation.world import simulate
from unit.broker.coordinator.seeds import main

EVENTS = 10_000

if __name__ == "__main__":
    sys.exit(main(simulate, EVENTS, __doc__ or ""))
