"""Checks of what callers give to the admin client, so that a wrong type never reaches the broker."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from warmlog.texts import checked_text

if TYPE_CHECKING:
    from warmlog_transport.responses import TopicPartition

SettingGiven = str | int | float | bool | timedelta
"""A value of a setting as Python code has it: `"7d"`, `1000`, `0.5`, `True`, `timedelta(days=7)`."""

_MILLISECOND = timedelta(milliseconds=1)


def setting_texts(settings: Mapping[str, SettingGiven]) -> dict[str, str]:
    """The settings as the broker reads them.

    TypeError names the first setting whose value has another type, ValueError one that is less than a millisecond.
    """
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings must be a mapping such as {{'retention.ms': '7d'}}, not {settings!r}")
    return {checked_text(name, "the name of a setting"): _text(name, value) for name, value in settings.items()}


def _text(name: str, value: SettingGiven) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, timedelta):
        if timedelta(0) < value < _MILLISECOND:  # 0 ms may mean that everything is deleted
            raise ValueError(f"{name}: {value!r} is less than a millisecond, and settings are whole milliseconds")
        return f"{value // _MILLISECOND}ms"
    raise TypeError(
        f"{name}: {value!r} is a {type(value).__name__}; a setting is a str such as '7d', an int, a float, a bool or a "
        f"timedelta"
    )


def checked_count(value: int, what: str) -> int:
    """Return `value`; TypeError if it is not an int."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int, not {value!r} ({type(value).__name__})")
    return value


def checked_texts(values: Iterable[str], what: str) -> list[str]:
    """Return a list of `values`; TypeError for a single str, or if one of them is none."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be a list of str, such as [{values!r}]")
    return [checked_text(value, f"each of {what}") for value in values]


def check_partitions(values: Iterable[int]) -> None:
    """Raise TypeError unless `values` are the numbers of partitions."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"partitions must be a list of int such as [0, 1], not {values!r}")
    for value in values:
        checked_count(value, "each of partitions")


def check_offsets(values: "Mapping[TopicPartition, int]", what: str) -> None:
    """Raise TypeError unless `values` have a number for each (topic, partition)."""
    expected = f"{what} must be a mapping such as {{('orders', 0): 100}}"
    if not isinstance(values, Mapping):
        raise TypeError(f"{expected}, not {values!r}")
    for key, value in values.items():
        if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and isinstance(key[1], int)):
            raise TypeError(f"{expected}; a key is (topic, partition), not {key!r}")
        checked_count(value, f"{what} of {key[0]}-{key[1]}")
