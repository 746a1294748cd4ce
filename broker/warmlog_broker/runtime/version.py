"""The version of the broker."""

from functools import cache


@cache
def broker_version() -> str:
    """Return the version of the installed distribution; "unknown" in a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("warmlog")
    except PackageNotFoundError:
        return "unknown"
