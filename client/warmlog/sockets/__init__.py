"""Connections and metadata on plain sockets, without an event loop or a thread: for Spark's tasks and `ranges`."""
