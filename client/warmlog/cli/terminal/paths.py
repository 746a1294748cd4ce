"""Kinds of paths that commands take; what takes none of them does not import pathlib."""

from pathlib import Path

import click

DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
NEW_DIRECTORY = click.Path(file_okay=False, path_type=Path)
FILE_OR_DIRECTORY = click.Path(exists=True, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
ANY_PATH = click.Path(path_type=Path)
