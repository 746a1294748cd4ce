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
    """The table as Markdown: a heading for each setting, so that it can be linked, and what it does comes first."""
    return "\n".join(f"### `{row.name}`\n\n{row.sentence}\n{_facts(row)}" for row in table)


def _facts(row: Setting) -> str:
    default = row.format(row.default)
    facts = [
        f"*default* {default} {row.unit}".rstrip() if default else "",
        f"*allowed* {row.allowed}" if row.allowed else "",
        "*altered while running*" if row.is_dynamic else "",
    ]
    told = " · ".join(filter(None, facts))
    return f"\n{told}\n" if told else ""
