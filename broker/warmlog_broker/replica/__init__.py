"""Partitions as served: appends, high watermark, group commit, waiting readers, their data directories."""
