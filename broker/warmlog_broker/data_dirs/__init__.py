"""Data directories at a start: lock, identify, place partitions, load logs."""
