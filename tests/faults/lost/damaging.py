"""Ways to lose data that was on disk: each changes the directory of one partition while its broker is down."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from warmlog_broker.storage.segment.segment_files import KINDS, segment_file_name
from warmlog_protocol.batch import iter_batches


class Lost(NamedTuple):
    """A partition's directory, the base offset of the segment to be damaged, and copies from the time of writing."""

    directory: Path
    base_offset: int
    copies: list[Path]
    """Of the whole directory, the oldest first."""

    @property
    def path(self) -> Path:
        return self.directory / segment_file_name(self.base_offset, ".log")

    @property
    def positions(self) -> list[int]:
        """Where each batch begins."""
        positions, position = [], 0
        for batch in iter_batches(self.path.read_bytes()):
            positions.append(position)
            position += batch.size_bytes
        return positions


def empty(lost: Lost) -> None:
    os.truncate(lost.path, 0)


def cut_in_a_batch(lost: Lost) -> None:
    positions = lost.positions
    os.truncate(lost.path, positions[len(positions) // 2] + 70)


def cut_at_a_batch(lost: Lost) -> None:
    positions = lost.positions
    os.truncate(lost.path, positions[len(positions) // 2])


def rename_up(lost: Lost) -> None:
    lost.path.rename(lost.directory / segment_file_name(lost.base_offset + 3, ".log"))


def rename_down(lost: Lost) -> None:
    lost.path.rename(lost.directory / segment_file_name(max(lost.base_offset - 3, 0), ".log"))


def rename_to_the_end(lost: Lost) -> None:
    lost.path.rename(lost.directory / segment_file_name(9000, ".log"))


def remove(lost: Lost) -> None:
    lost.path.unlink()


def remove_with_indexes(lost: Lost) -> None:
    for kind in KINDS:
        (lost.directory / segment_file_name(lost.base_offset, kind)).unlink(missing_ok=True)


def put_older_copy(lost: Lost) -> None:
    """The segment's files as they were when it was being written."""
    name = segment_file_name(lost.base_offset, ".log")
    older = next(copy for copy in lost.copies if (copy / name).exists() and (copy / name).stat().st_size)
    for kind in KINDS:
        own = segment_file_name(lost.base_offset, kind)
        (lost.directory / own).unlink(missing_ok=True)
        if (older / own).exists():
            shutil.copy2(older / own, lost.directory / own)


def put_copied_directory(lost: Lost) -> None:
    """The directory as a copy has it that was made while the broker wrote: each file is of another moment."""
    shutil.rmtree(lost.directory)
    lost.directory.mkdir()
    names = sorted({path.name for copy in lost.copies for path in copy.iterdir()})
    begin = next(
        n for n, copy in enumerate(lost.copies) if (copy / segment_file_name(lost.base_offset, ".log")).exists()
    )
    for number, name in enumerate(names):
        copy = lost.copies[min(begin + number * (len(lost.copies) - begin) // len(names), len(lost.copies) - 1)]
        if (copy / name).exists():
            shutil.copy2(copy / name, lost.directory / name)


DAMAGES: dict[str, Callable[[Lost], None]] = {
    damage.__name__: damage
    for damage in (
        empty,
        cut_in_a_batch,
        cut_at_a_batch,
        rename_up,
        rename_down,
        rename_to_the_end,
        remove,
        remove_with_indexes,
        put_older_copy,
        put_copied_directory,
    )
}
