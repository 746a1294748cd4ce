"""The page of settings, printed from the tables of settings."""

from collections.abc import Sequence

from warmlog_broker.storage.config import Setting

ABOUT_VALUES = """\
A setting in ms takes a number of milliseconds or a duration: `250ms`, `30s`, `90m`, `12h`, `7d`. A setting in bytes
takes a number of bytes or a size: `64KiB`, `16MiB`, `1GiB`, `2TiB`, or, with powers of ten, `kB`, `MB`, `GB`, `TB`.
This is so everywhere: in a file, in an environment variable, on the command line and in the Python API.
"""
"""Before the tables."""


def describe_settings(table: Sequence[Setting]) -> str:
    """The table as Markdown."""
    lines = [
        "| setting | default | allowed | unit | altered while running | what it does |",
        "|---|---|---|---|---|---|",
    ]
    for row in table:
        default, altered = row.format(row.default), "yes" if row.is_dynamic else ""
        lines.append(f"| `{row.name}` | {default} | {row.allowed} | {row.unit} | {altered} | {row.sentence} |")
    return "\n".join(lines) + "\n"
