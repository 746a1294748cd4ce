"""The file `offset-gaps`: batches of this log need not follow one another without gaps.

A leader gives offsets out without gaps, so a gap in a log that was never compacted is damage. One that was keeps its
gaps when `cleanup.policy` says delete again, even if that called its first compaction off half way; and a copy of it
has them from the start, whatever its own settings say. So before the first compacted segment is taken in, and before
the first batch behind a gap is appended to a copy, this file is made, durably; its content is the line `version: 0`.
Without it the batches behind a gap would be taken for damage after the next start.
"""

from pathlib import Path

from warmlog_broker.storage.io.durable_files import replace_file

GAPS_NAME = "offset-gaps"

_CONTENT = b"version: 0\n"


def note_gaps(directory: Path) -> None:
    """Makes the file, durably."""
    replace_file(directory / GAPS_NAME, _CONTENT)


def has_gaps(directory: Path) -> bool:
    """Whether the file is there, whatever it holds."""
    return (directory / GAPS_NAME).exists()
