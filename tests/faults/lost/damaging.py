"""Ways to lose data that was on disk: each changes the directory of one partition while its broker is down."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from warmlog_broker.storage.segment.segment_files import KINDS, LOG_KIND, segment_file_name
from warmlog_protocol.batch import iter_batches

FAR_AWAY = 9000
"""An offset that no log reaches."""


class Victim(NamedTuple):
    """A segment that is to be damaged, and what its partition's directory was while it was written."""

    directory: Path
    base_offset: int
    copies: list[Path]
    """Of the directory, the oldest first, if the damage needs any."""

    @property
    def path(self) -> Path:
        return self.directory / segment_file_name(self.base_offset, LOG_KIND)

    @property
    def middle(self) -> int:
        """The position of a batch that is not the first one."""
        sizes = [batch.size_bytes for batch in iter_batches(self.path.read_bytes())]
        return sum(sizes[: len(sizes) // 2])


Damage = Callable[[Victim], None]


def empty(victim: Victim) -> None:
    os.truncate(victim.path, 0)


def cut_in_a_batch(victim: Victim) -> None:
    os.truncate(victim.path, victim.middle + 70)


def cut_at_a_batch(victim: Victim) -> None:
    os.truncate(victim.path, victim.middle)


def rename_up(victim: Victim) -> None:
    victim.path.rename(victim.directory / segment_file_name(victim.base_offset + 3, LOG_KIND))


def rename_down(victim: Victim) -> None:
    victim.path.rename(victim.directory / segment_file_name(max(victim.base_offset - 3, 0), LOG_KIND))


def rename_far(victim: Victim) -> None:
    victim.path.rename(victim.directory / segment_file_name(FAR_AWAY, LOG_KIND))


def remove(victim: Victim) -> None:
    victim.path.unlink()


def remove_with_side_files(victim: Victim) -> None:
    for path in victim.directory.glob(f"{victim.base_offset:020d}.*"):
        path.unlink()


def take_an_older_copy(victim: Victim) -> None:
    """The segment's files are again what they were when it was being written."""
    name = segment_file_name(victim.base_offset, LOG_KIND)
    older = next(copy for copy in victim.copies if (copy / name).exists() and (copy / name).stat().st_size)
    for kind in KINDS:
        own = segment_file_name(victim.base_offset, kind)
        (victim.directory / own).unlink(missing_ok=True)
        if (older / own).exists():
            shutil.copy2(older / own, victim.directory / own)


def take_a_copied_directory(victim: Victim) -> None:
    """All files are what a slow copy, begun when the segment was, found: each is a bit later than the one before."""
    name = segment_file_name(victim.base_offset, LOG_KIND)
    copies = [copy for copy in victim.copies if (copy / name).exists()]
    names = sorted({path.name for copy in copies for path in copy.iterdir()})
    shutil.rmtree(victim.directory)
    victim.directory.mkdir()
    for number, each in enumerate(names):
        source = copies[number * len(copies) // len(names)] / each
        if source.exists():
            shutil.copy2(source, victim.directory / each)


NEEDING_COPIES: tuple[Damage, ...] = (take_an_older_copy, take_a_copied_directory)
DAMAGES: tuple[Damage, ...] = (
    empty,
    cut_in_a_batch,
    cut_at_a_batch,
    rename_up,
    rename_down,
    rename_far,
    remove,
    remove_with_side_files,
    *NEEDING_COPIES,
)


def copy_directory(directory: Path, target: Path) -> None:
    """As it is just now; what is renamed or removed meanwhile is missing."""
    target.mkdir(parents=True)
    for path in sorted(directory.iterdir()):
        try:
            shutil.copy2(path, target / path.name)
        except FileNotFoundError:
            continue
