"""Descriptors, durable replacement of files, and what an errno means."""
