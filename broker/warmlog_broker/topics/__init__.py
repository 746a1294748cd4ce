"""Topics as served: created, changed, deleted; the moves of their partitions between data directories."""
