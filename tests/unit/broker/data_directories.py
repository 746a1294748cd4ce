"""A data directory as a start opens it."""

from pathlib import Path

from warmlog_broker.storage.directory.data_dir import DataDirectory


def open_directory(path: Path) -> DataDirectory:
    """Locks and takes over a directory of any cluster; nothing stays locked if that fails."""
    directory = DataDirectory.lock(path)
    try:
        directory.take_over(None)
    except BaseException:
        directory.close()
        raise
    return directory
