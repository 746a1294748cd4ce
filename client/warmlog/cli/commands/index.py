"""`warmlog index`: show what a search in an index reads."""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.terminal.exits import CommandFailed, checked
from warmlog.cli.terminal.options import client_options, print_result, run_admin
from warmlog.cli.terminal.output import line, note
from warmlog.cli.terminal.paths import DIRECTORY, NEW_FILE

if TYPE_CHECKING:
    from warmlog.cli.index_trace.trace import IndexShape, Trace
    from warmlog_broker.storage.index.offset_index import OffsetIndex
    from warmlog_broker.storage.index.search import Probe
    from warmlog_broker.storage.index.time_index import TimeIndex

LINE_WIDTH = 100


@click.command()
@click.argument("directory", type=DIRECTORY, required=False, metavar="[DIR]", help="A partition's directory.")
@click.option(
    "--target",
    type=click.IntRange(min=0, max=2**63 - 1),
    metavar="N",
    help="The offset, or with --index time the timestamp in ms; the last entry if not given.",
)
@click.option("--segment", type=click.IntRange(min=0), metavar="BASE", help="Use the segment with this base offset.")
@click.option("--index", "kind", type=click.Choice(["offset", "time"]), default="offset", help="Which index.")
@click.option(
    "--entries",
    type=click.IntRange(min=1, max=2**31 - 1),
    metavar="N",
    help="Without DIR: an index of N entries, numbered from 0.",
)
@click.option(
    "--partition",
    "of_broker",
    metavar="TOPIC-N",
    help="Without DIR: the offset index that the broker searches in this partition.",
)
@click.option("--png", type=NEW_FILE, metavar="FILE", help="Draw a picture too (needs the extra picture).")
@click.option("--page-bytes", type=click.IntRange(min=64, max=2**30), default=4096, help="The size of a page.")
@client_options
def trace(
    directory: Path | None,
    target: int | None,
    segment: int | None,
    kind: str,
    entries: int | None,
    of_broker: str | None,
    png: Path | None,
    page_bytes: int,
) -> None:
    """Show which pages of an index a classic binary search reads, and which the warm/cold search of this broker.

    Files are only read, and may be in use. `--entries 6656` (13 pages) and `--entries 7168` (14 pages) show without
    any data why the classic search reads cold pages whenever an index grows by a page.
    """
    from warmlog.cli.index_trace.picture import check_pillow, draw_png
    from warmlog.cli.index_trace.trace import IndexShape, draw_text, trace_both, traces_of
    from warmlog.points import parse_partition
    from warmlog_broker.storage.index.offset_index import OffsetIndex
    from warmlog_broker.storage.index.time_index import TimeIndex

    probe: Probe = int  # of an index of entries that are numbered from 0
    if sum(given is not None for given in (directory, entries, of_broker)) != 1:
        raise click.BadParameter(
            "give a partition's directory, --entries or --partition: one of them", param_hint="DIR"
        )
    if of_broker is not None and (segment is not None or kind != "offset"):
        text = "a broker searches its offset index, in the segment of --target"
        raise click.BadParameter(text, param_hint="--partition")
    if png is not None:
        if not png.parent.is_dir():
            raise click.BadParameter(f"{png.parent} is not a directory", param_hint="--png")
        if not os.access(png if png.exists() else png.parent, os.W_OK):
            raise click.BadParameter(f"{png} is not writable", param_hint="--png")
        check_pillow()
    index_class: type[OffsetIndex | TimeIndex] = OffsetIndex if kind == "offset" else TimeIndex
    with ExitStack() as stack:
        if of_broker is not None:
            topic, number = checked("--partition", lambda text: parse_partition(text, "the option"), of_broker)
            found = run_admin(lambda admin: admin.trace_index(topic, number, target))
            shape, traces = traces_of(f"{of_broker}, segment {found.base_offset}", found, page_bytes)
            target_name = f"offset {found.offset}"
        else:
            if directory is None:
                assert entries is not None
                name, base_offset = "an index", 0
            else:
                index = _open_index(directory, target if kind == "offset" else None, segment, index_class)
                stack.callback(index.close)
                name, entries, probe = str(index.path), index.entries, index.probe(index.key)
                base_offset = index.base_offset if kind == "offset" else 0
            shape = IndexShape(name, entries, index_class.entry_bytes, index_class.warm_entries, page_bytes, probe)
            stored_target = probe(entries - 1) if target is None else target - base_offset
            target_name = f"{'offset' if kind == 'offset' else 'timestamp'} {stored_target + base_offset}"
            traces = trace_both(shape, stored_target)
        width = shutil.get_terminal_size((LINE_WIDTH, 24)).columns

        def draw() -> None:
            line("\n".join(draw_text(shape, target_name, traces, width=width)))

        print_result(_document(shape, target_name, traces), draw)
        if png is not None:
            draw_png(png, shape, target_name, traces)
            note(f"the picture is in {png}")


def _open_index(
    directory: Path, offset: int | None, segment: int | None, index_class: "type[OffsetIndex | TimeIndex]"
) -> "OffsetIndex | TimeIndex":
    """Open the index of `segment`, or of the segment that holds `offset`, or of the last one.

    If that has no entries, as when its segment was just rolled, open the newest one before it that has some.
    """
    from warmlog_broker.storage.index.time_index import TimeIndex
    from warmlog_broker.storage.io.open_files import OpenFiles
    from warmlog_broker.storage.segment import segment_files

    suffix = segment_files.TIME_INDEX_KIND if index_class is TimeIndex else segment_files.OFFSET_INDEX_KIND
    files = {segment_files.split_name(path.name): path for path in directory.iterdir()}
    paths = {base: path for (base, kind), path in files.items() if kind == suffix}
    if not paths:
        if segment_files.base_offsets_in(directory):
            raise CommandFailed(
                f"{directory} has no {suffix} file yet: a segment gets one with its first entry, once it has more than "
                "index.interval.bytes (4 KiB unless set) of records"
            )
        raise CommandFailed(f"{directory} has no {suffix} file; is it a partition's directory?")
    if segment is None:
        bases = [base for base in sorted(paths, reverse=True) if offset is None or base <= offset] or [min(paths)]
    elif segment in paths:
        bases = [segment]
    else:
        known = ", ".join(map(str, sorted(paths)[:10]))
        raise CommandFailed(f"{directory} has no segment {segment} with a {suffix} file; there are {known}")
    for base in bases:
        index = index_class(paths[base], base, open_files=OpenFiles(), is_writable=False)
        if index.entries:
            if base != bases[0]:
                note(f"{paths[bases[0]]} has no entries yet: using the newest index that has some")
            return index
        index.close()
    raise CommandFailed(f"{paths[bases[0]]} has no entries to search")


def _document(index: "IndexShape", target_name: str, traces: "tuple[Trace, ...]") -> dict[str, object]:
    return {
        "index": index.name,
        "entries": index.entries,
        "pages": index.pages,
        "warm_pages": list(index.warm_pages),
        "target": target_name,
        "searches": [each._asdict() for each in traces],
    }
