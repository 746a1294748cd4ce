"""Checks each batch and side file of a partition directory, and rebuilds side files."""
