"""Fetched bytes as batches and records."""
