"""A file's path that is text until somebody asks for it.

A start names four files for each segment and looks at one; making Path objects of the others took a third of its time.
"""

from pathlib import Path


class HasPath:
    """Has a `path`, given as text or as a Path."""

    __slots__ = ("_path",)

    def __init__(self, path: Path | str) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        """Where the file is, or is to be."""
        path = self._path
        if isinstance(path, str):
            path = self._path = Path(path)
        return path
