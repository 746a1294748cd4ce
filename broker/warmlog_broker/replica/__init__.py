"""Partitions as served: appends, high watermark, group commit, waiting readers, moves between data directories."""
