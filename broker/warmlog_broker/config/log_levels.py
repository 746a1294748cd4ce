"""`log.level`: a level for the whole broker, and others for parts of it: `info,network=debug`.

A part is a folder of `warmlog_broker`; its loggers are named after its modules.
"""

import logging
from functools import cache
from pathlib import Path

from warmlog_protocol.errors import InvalidConfig, did_you_mean

_ROOM = Path(__file__).parents[1]
_LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error", "critical")}


@cache
def logger_names() -> dict[str, str]:
    """Return the logger of each part, by the part's name in `log.level`; that of the whole broker has the name ""."""
    parts = sorted(path.parent.name for path in _ROOM.glob("*/__init__.py"))
    return {"": ""} | {part: f"{_ROOM.name}.{part}" for part in parts}


def parse_log_level(text: str) -> dict[str, int]:
    """Return the levels by part, that of the whole broker under ""; InvalidConfig says what is wrong."""
    levels: dict[str, int] = {}
    for item in text.split(","):
        part, _, name = item.strip().rpartition("=")
        level = _LEVELS.get(name.strip().lower())
        part = part.strip()
        if level is None:
            raise InvalidConfig(f"log.level: {name!r} is not a level, it must be {' or '.join(_LEVELS)}")
        if part not in logger_names():
            hint = did_you_mean(part, filter(None, logger_names()), "the parts are")
            raise InvalidConfig(f"log.level: {part!r} is not a part of the broker{hint}")
        if part in levels:
            raise InvalidConfig(f"log.level: {text!r} has two levels for {part or 'the whole broker'}: remove one")
        levels[part] = level
    if "" not in levels:
        raise InvalidConfig(f"log.level: {text!r} has no level for the whole broker, such as info,{text}")
    return levels
