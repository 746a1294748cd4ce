"""Names of a segment's files: the base offset in 20 digits and a kind; a suffix such as `.deleted` may follow.

The `.log` is renamed and deleted first: without it, the next start removes the others.
"""

from pathlib import Path

LOG_KIND = ".log"
OFFSET_INDEX_KIND = ".index"
TIME_INDEX_KIND = ".timeindex"
TRANSACTION_INDEX_KIND = ".txnindex"
KINDS = (LOG_KIND, OFFSET_INDEX_KIND, TIME_INDEX_KIND, TRANSACTION_INDEX_KIND)
"""In the order in which they are renamed and deleted."""


def segment_file_name(base_offset: int, kind: str, suffix: str = "") -> str:
    """The name of a segment's file; `kind` begins with a dot, and so does `suffix` unless it is empty."""
    return f"{base_offset:020d}{kind}{suffix}"


def base_offsets_in(directory: Path) -> list[int]:
    """The base offsets of the `.log` files in a partition's directory, in order."""
    return sorted(int(path.stem) for path in directory.glob(f"{'[0-9]' * 20}{LOG_KIND}"))
