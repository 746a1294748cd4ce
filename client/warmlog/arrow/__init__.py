"""Batches as Arrow arrays."""
