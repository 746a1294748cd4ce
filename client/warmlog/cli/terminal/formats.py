"""The formats of `warmlog consume`: raw values, JSON (see `json_records`), or a template (see `templates`).

`raw` is each value as it is stored, and a newline; a null value is an empty line.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from warmlog.cli.terminal.json_records import write_json
from warmlog.cli.terminal.templates import BatchWriter, compile_template

if TYPE_CHECKING:
    from warmlog import Batch


def batch_writer(name: str) -> BatchWriter:
    """Return the writer for `raw`, `json` or a template; ValueError for anything else."""
    if name == "raw":
        return write_raw
    if name == "json":
        return write_json
    if "%" in name:
        return compile_template(name)
    raise ValueError(f"{name!r} is neither raw, nor json, nor a template with tokens such as '%k %v'")


def write_raw(batch: "Batch", count: int) -> bytes:
    """Return the first `count` values, each followed by a newline."""
    values: Sequence[bytes | None] = batch.values if count == len(batch) else batch.values[:count]
    try:
        return b"\n".join(values) + b"\n"  # type: ignore[arg-type]  # nulls are rare: checking for them costs more
    except TypeError:
        return b"\n".join([value or b"" for value in values]) + b"\n"
