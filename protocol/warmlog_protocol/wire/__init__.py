"""Frames and the sans-I/O connection."""
