"""A setting as a user gave it, and where."""

from enum import StrEnum

from msgspec import Struct

HIDDEN = "(hidden)"
_SECRET_ENDINGS = ("password", "secret", "token")


class Origin(StrEnum):
    """Where the value of a setting comes from; a later one takes precedence."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"
    ALTERED = "altered"
    """By a request to the running broker."""


class Given(Struct, frozen=True):
    """The text of one setting."""

    text: str
    origin: Origin
    place: str = ""
    """What an operator looks for: the file, or the environment's variable."""


def shown(name: str, text: str) -> str:
    """Return the value of a setting for people and logs: hidden if the name says that it is a secret.

    No setting is one today, passwords are in files; but a file may have `sasl.password`, which is none.
    """
    return HIDDEN if name.lower().replace("_", ".").endswith(_SECRET_ENDINGS) else text
