"""Fetched bytes as batches and records, and what to do about those that cannot be read."""
