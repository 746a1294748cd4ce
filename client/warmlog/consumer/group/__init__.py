"""Membership of a group: heartbeats, committed offsets. Reading is in `consumer`."""
