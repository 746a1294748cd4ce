"""Names of topics: Kafka's rules.

A name has 1 to 249 ASCII letters, digits, ".", "_" and "-", and is neither "." nor "..". Two names must not differ only
in "." and "_": metrics systems write both the same way.

Names that begin with "__" are reserved for internal topics, which the broker creates for its own state. 0.1.0 allowed
clients to create topics of such names: these stay ordinary topics, which can be listed, read, written and deleted.
"""

import re
from collections.abc import Iterable

from warmlog_protocol.errors import InvalidTopic

MAX_NAME_CHARACTERS = 249
INTERNAL_PREFIX = "__"
SHOWN_CHARACTERS = 300

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise InvalidTopic, which names the rule, if `name` is not valid."""
    if not name:
        raise InvalidTopic("the topic's name is empty")
    if name in (".", ".."):
        raise InvalidTopic(f"a topic cannot be called {name!r}")
    if len(name) > MAX_NAME_CHARACTERS:
        raise InvalidTopic(f"a name of {len(name)} characters, {MAX_NAME_CHARACTERS} are allowed: {shown(name)}")
    if not _LEGAL.fullmatch(name):
        raise InvalidTopic(f"{shown(name)} has characters other than ASCII letters, digits, '.', '_' and '-'")


def colliding_topic(name: str, existing: Iterable[str]) -> str | None:
    """Return the first of `existing`, except `name` itself, that differs from it only in "." and "_"."""
    if "." not in name and "_" not in name:
        return None
    folded = name.replace(".", "_")
    return next((other for other in existing if other != name and other.replace(".", "_") == folded), None)


def shown(name: str) -> str:
    """Return a name that a client has sent as errors show it."""
    return repr(name if len(name) <= SHOWN_CHARACTERS else name[:SHOWN_CHARACTERS] + "…")
