"""Periodic work: retention, compaction, warming of indexes."""
