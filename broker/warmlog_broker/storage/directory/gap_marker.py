"""The file `offset-gaps`: this log may have gaps between the offsets of its batches.

A leader assigns offsets without gaps, so a gap in a log that was never compacted is damage. A log that was compacted
keeps its gaps when `cleanup.policy` is delete again, even if its first compaction was cancelled half way; a copy of it
has them from the start, whatever its own settings. So this file is written, durably, before the first compacted segment
is added or the first batch after a gap is appended to a copy. Its content is the line `version: 0`. Without it the next
start would take the batches after a gap for damage.
"""

from pathlib import Path

from warmlog_broker.storage.io.durable_files import replace_file

GAPS_NAME = "offset-gaps"

_CONTENT = b"version: 0\n"


def note_gaps(directory: Path) -> None:
    replace_file(directory / GAPS_NAME, _CONTENT)


def has_gaps(directory: Path) -> bool:
    """Whether the file exists, whatever its content."""
    return (directory / GAPS_NAME).exists()
