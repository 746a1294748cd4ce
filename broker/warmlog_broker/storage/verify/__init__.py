"""Check each batch and side file of a partition directory, and rebuild side files."""
