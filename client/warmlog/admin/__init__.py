"""Admin: topics, settings, partitions, data directories."""
