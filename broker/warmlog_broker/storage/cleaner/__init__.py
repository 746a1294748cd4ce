"""Compaction of closed segments: what to clean, which records stay, the rewritten segment."""
