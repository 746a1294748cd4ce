"""Tables and figures for people: columns that fit the terminal, sizes with units, local times.

A cell is never broken inside a word or a number. Texts wrap between words, a word that is wider than its column is
shortened in the middle, and a table that is too wide even then is shown as one block for each row.
"""

from collections.abc import Sequence
from itertools import zip_longest

Cell = str | int
Row = Sequence[Cell]

GAP = "  "
RULE = "─"
CUT = "…"
SHORTEST = 12
"""The narrowest column for words that are shortened."""
SENTENCE = 32
"""The narrowest column for sentences, if words in other columns can be shortened for it."""

NO_LIMIT = (-1, 2**63 - 1)
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DURATIONS = ((86_400_000, "d", "day"), (3_600_000, "h", "hour"), (60_000, "m", "minute"), (1000, "s", "second"))


class Count(int):
    """A number of things: "2,353" at a terminal, digits elsewhere."""


class Size(int):
    """A number of bytes: "1.4 GiB"; -1 is unknown."""


class Instant(int):
    """Milliseconds since 1970: local time; negative is none."""


class Age(int):
    """Milliseconds that have passed: "4.2 s"."""


def shown(cell: Cell) -> str:
    """Return the cell as people read it."""
    match cell:
        case Size():
            return human_size(cell)
        case Count():
            return f"{cell:,}"
        case Instant():
            return local_time(cell)
        case Age():
            return human_age(cell)
        case int():
            return str(cell)
    return harmless(cell, kept="")


def harmless(text: str, *, kept: str = "\n\t") -> str:
    """Return `text` without what a terminal obeys or cannot show, such as escape codes; of these only `kept` stays."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in kept else "\ufffd" for letter in text)


def human_size(size_bytes: int) -> str:
    """Return a size with a binary unit, such as "1.4 GiB"; "unknown" if it is negative."""
    if size_bytes < 0:
        return "unknown"
    value, unit = float(size_bytes), 0
    while value >= (1000 if unit else 1024) and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_SIZES[unit]}" if unit and value < 100 else f"{value:.0f} {_SIZES[unit]}"


def local_time(timestamp_ms: int) -> str:
    """Return the time in the local zone, with its UTC offset; "" for a negative one, digits after the year 9999."""
    from datetime import datetime

    if timestamp_ms < 0:
        return ""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)


def human_age(age_ms: int) -> str:
    """Return a duration in its largest unit, such as "4.2 s" or "1.5 h"."""
    seconds = age_ms / 1000
    for size_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size_s:
            return f"{seconds / size_s:.1f} {unit}"
    return f"{seconds:.1f} s"


def duration_words(duration_ms: int) -> str:
    """Return a duration in words, such as "7 days"."""
    for unit_ms, _, word in _DURATIONS:
        if duration_ms >= unit_ms and duration_ms % unit_ms == 0:
            number = duration_ms // unit_ms
            return f"{number:,} {word}{'' if number == 1 else 's'}"
    return f"{duration_ms:,} ms"


def setting_text(name: str, value: str) -> str:
    """Return a setting's value as people write it, "7d" or "16MiB", if it has a unit and is a round number of it."""
    if not value.lstrip("-").isdigit():
        return value
    number = int(value)
    if number in NO_LIMIT:
        return f"{value} (no limit)" if number < 0 else "no limit"
    if name.endswith(".ms"):
        units = [*((unit_ms, unit) for unit_ms, unit, _ in _DURATIONS), (1, "ms")]
    elif name.endswith((".bytes", ".size")):
        units = [(1024**power, _SIZES[power]) for power in (4, 3, 2, 1)]
    else:
        return value
    for size, unit in units:
        if number and number % size == 0:
            return f"{number // size}{unit}"
    return value


def draw(headings: Sequence[str], rows: Sequence[Row], width: int) -> list[str]:
    """Return the lines of a table that is at most `width` columns wide."""
    columns = [_Column(heading, [row[number] for row in rows]) for number, heading in enumerate(headings)]
    widths = _fit(columns, width - _width(GAP) * (len(columns) - 1))
    if widths is None:
        return _blocks(columns, len(rows), width)
    drawn = _row_lines([column.heading.split() for column in columns], columns, widths)
    drawn.append(GAP.join(RULE * size for size in widths))
    for number in range(len(rows)):
        drawn += _row_lines([column.words[number] for column in columns], columns, widths)
    return drawn


class _Column:
    """A column's heading, and the words of each of its cells."""

    def __init__(self, heading: str, cells: Sequence[Cell]) -> None:
        self.heading = heading
        self.words = [shown(cell).split() if isinstance(cell, str) else [shown(cell)] for cell in cells]
        self.is_right = any(isinstance(cell, int) for cell in cells) and all(
            (isinstance(cell, int) and not isinstance(cell, Instant)) or not cell for cell in cells
        )
        title = max(map(_width, heading.split()), default=0)
        longest = max((_width(word) for words in self.words for word in words), default=0)
        is_sentence = any(len(words) > 1 for words in self.words)
        self.most = max(_width(heading), *(_width(" ".join(words)) for words in self.words), 0)
        self.unbreakable = max((_width(shown(cell)) for cell in cells if not isinstance(cell, str)), default=0)
        self.comfortable = max(title, longest, min(self.most, SENTENCE) if is_sentence else 0)
        self.least = max(title, self.unbreakable, min(longest, SHORTEST))


def _fit(columns: Sequence[_Column], available: int) -> list[int] | None:
    """Return the widths of the columns; None if they do not fit even with shortened words."""
    levels = [[column.least, column.comfortable, column.most] for column in columns]
    for low, high in ((2, 2), (1, 2), (0, 1)):
        widths = [level[low] for level in levels]
        wanted = [level[high] for level in levels]
        if sum(widths) > available:
            continue
        while sum(widths) < available and widths != wanted:
            growing = [number for number in range(len(widths)) if widths[number] < wanted[number]]
            widths[min(growing, key=widths.__getitem__)] += 1
        return widths
    return None


def draw_facts(pairs: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return names and texts, one pair a line; the texts are aligned and wrapped between words."""
    margin = max((_width(name) for name, _ in pairs), default=0) + _width(GAP)
    drawn = []
    for name, text in pairs:
        lines = _wrap(text.split(), max(width - margin, SENTENCE), shortens=False)
        drawn += [
            f"{title.ljust(margin)}{part}" for title, part in zip((name, *[""] * len(lines)), lines, strict=False)
        ]
    return drawn


def _wrap(words: Sequence[str], width: int, *, shortens: bool = True) -> list[str]:
    """Return lines of `width` at most; a word that is wider is shortened in the middle, or has a line of its own."""
    lines: list[str] = []
    for word in words:
        fitting = shorten(word, width) if shortens else word
        if lines and _width(lines[-1]) + 1 + _width(fitting) <= width:
            lines[-1] += f" {fitting}"
        else:
            lines.append(fitting)
    return lines


def shorten(word: str, width: int) -> str:
    """Return the word, without its middle if it is wider than `width`."""
    kept = width - _width(CUT)
    result = word
    while _width(result) > width and kept > 1:
        result = f"{word[: (kept + 1) // 2]}{CUT}{word[len(word) - kept // 2 :]}"
        kept -= 1
    return result


def _row_lines(cells: Sequence[Sequence[str]], columns: Sequence[_Column], widths: Sequence[int]) -> list[str]:
    """Return the lines of a row, whose cells are given as words."""
    wrapped = [_wrap(words, width) for words, width in zip(cells, widths, strict=True)]
    lines = []
    for texts in zip_longest(*wrapped, fillvalue=""):
        padded = []
        for text, column, width in zip(texts, columns, widths, strict=True):
            space = " " * (width - _width(text))
            padded.append(space + text if column.is_right else text + space)
        lines.append(GAP.join(padded).rstrip())
    return lines


def _blocks(columns: Sequence[_Column], count: int, width: int) -> list[str]:
    """Return one block for each row: a heading and a value on each line."""
    margin = max(_width(column.heading) for column in columns)
    room = max(width - margin - _width(GAP), SHORTEST, *(column.unbreakable for column in columns))
    drawn = []
    for number in range(count):
        drawn += [""] if number else []
        for column in columns:
            for heading, text in zip_longest([column.heading], _wrap(column.words[number], room), fillvalue=""):
                drawn.append(f"{heading.ljust(margin)}{GAP}{text}".rstrip())
    return drawn


def _width(text: str) -> int:
    """Return how many columns of the terminal the text takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) != 0 for letter in text)
