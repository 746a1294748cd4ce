"""Admin: topics, settings, partitions, data directories."""

from warmlog.admin.admin import Admin

__all__ = ["Admin"]
