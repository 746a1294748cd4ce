"""Coordinators: state that is a replay of an internal compacted topic, and the services on top of it."""
