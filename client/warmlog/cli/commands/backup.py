"""`warmlog backup` and `warmlog restore`."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from warmlog.cli.terminal.options import json_option, print_result
from warmlog.cli.terminal.output import counted, line
from warmlog.cli.terminal.paths import DIRECTORY, NEW_DIRECTORY
from warmlog.cli.terminal.status import Status
from warmlog.cli.terminal.tables import human_size


@click.command()
@click.argument(
    "directory", type=NEW_DIRECTORY, metavar="DIR", help="The directory of backups; each gets its own in it."
)
@click.option(
    "--data-dir",
    type=DIRECTORY,
    required=True,
    metavar="DIR",
    help="The broker's data directory; the first, if it has several: the others are backed up too.",
)
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Afterwards remove all but the newest N.")
@json_option
def backup(directory: Path, data_dir: Path, keep: int | None) -> None:
    """Back up all data of a broker on this machine, while it runs or not.

    Files that did not change since the last backup in DIR are linked to it, and those that are never written again to
    the data directory, if it is on the same file system. Otherwise they are copied.
    """
    from warmlog_broker.tools.backup.backup import back_up

    with _progress("copying") as tell:
        made = back_up(data_dir, directory, now_ms=time.time_ns() // 1_000_000, keep=keep, on_copied=tell)
    removed = [str(path) for path in made.removed]
    said = (
        f"{made.path}: {counted(made.partitions, 'partition')}, {counted(made.files, 'file')}, "
        f"{human_size(made.size_bytes)}: {human_size(made.copied_bytes)} copied, {human_size(made.linked_bytes)} linked"
    )
    document = {**made._asdict(), "path": str(made.path), "removed": removed}
    print_result(document, lambda: line("\n".join([said, *(f"removed {path}" for path in removed)])))


@click.command()
@click.argument(
    "directory", type=DIRECTORY, metavar="DIR", help="A backup, or a directory of backups: then the newest one."
)
@click.option(
    "--data-dir",
    type=NEW_DIRECTORY,
    multiple=True,
    required=True,
    metavar="DIR",
    help="A new or empty directory for each data directory of the backup, in their order. Repeatable.",
)
@json_option
def restore(directory: Path, data_dir: tuple[Path, ...]) -> None:
    """Restore a backup made by `warmlog backup`, and compare each file with its checksum.

    The backup is only read. Run it as the broker's user, or change the owner of the directories afterwards.
    """
    from warmlog_broker.tools.backup.restore import choose_backup
    from warmlog_broker.tools.backup.restore import restore as run

    backup = choose_backup(directory)
    with _progress("restoring") as tell:
        manifest = run(backup, data_dir, on_copied=tell)
    size_bytes = sum(entry.size_bytes for entry in manifest.files.values())
    files, paths = len(manifest.files), [str(path) for path in data_dir]
    document = {"backup": str(backup), "data_dirs": paths, "files": files, "size_bytes": size_bytes}
    print_result(document, lambda: line(f"restored {backup}: {counted(files, 'file')}, {human_size(size_bytes)}"))


@contextmanager
def _progress(verb: str) -> Iterator[Callable[[str, int], None]]:
    """Yield what tells the name of a file, and how many bytes more of it have been copied."""
    status = Status()
    copied_bytes = 0

    def tell(name: str, count: int) -> None:
        nonlocal copied_bytes
        copied_bytes += count
        status.tell(f"{verb} {name}: {human_size(copied_bytes)} so far")

    try:
        yield tell
    finally:
        status.clear()
