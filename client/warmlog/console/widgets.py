"""Tables, names with texts, and charts. Whatever comes from the broker is shown as text: the templates are constant."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nicegui import html, ui

from warmlog.cli.terminal.output import escaped
from warmlog.cli.terminal.tables import Cell, Instant, shown

ROWS_A_PAGE = 50
LAST_MS = 8_640_000_000_000_000
"""The last time that a browser has: it does not draw a row with a later one."""
CELL = """<q-td :props="props"><a v-if="props.row.links[props.col.name]" :href="props.row.links[props.col.name]">{{
props.row.texts[props.col.name] }}</a><time v-else-if="props.row.times[props.col.name]"
:title="new Date(props.value).toISOString() + ' (UTC)'">{{
new Date(props.value).toLocaleString(undefined, {dateStyle: "medium", timeStyle: "medium"}) }}</time>
<template v-else>{{ props.row.texts[props.col.name] }}</template></q-td>"""

Values = Sequence["Cell | float | Link | None"]


class Link(NamedTuple):
    """A cell that leads to another page."""

    cell: Cell
    url: str


class Table:
    """A table under a heading, whose rows are replaced. Numbers, sizes and times are sorted as such."""

    def __init__(self, label: str, headings: Sequence[str]) -> None:
        html.h2(label)
        names = list(map(str, range(len(headings))))
        columns = [{"name": name, "field": name, "label": headings[int(name)].capitalize()} for name in names]
        same = {"sortable": True, "align": "left"}
        self.table = ui.table(columns=columns, column_defaults=same, rows=[], pagination=ROWS_A_PAGE).classes("wl-wide")
        self.table.props("flat dense bordered wrap-cells rows-per-page-label='Rows a page'").add_slot("body-cell", CELL)
        self.table.props["aria-label"] = label

    def show(self, rows: Sequence[Values]) -> None:
        """Show these rows, which have a cell for each heading."""
        self.table.rows = [_row(number, row) for number, row in enumerate(rows)]


def _row(number: int, cells: Values) -> dict[str, Any]:
    """Return a row for CELL: by the number of its column what is sorted; the texts, and which cells are otherwise."""
    plain = [cell.cell if isinstance(cell, Link) else cell for cell in cells]
    return {
        "id": number,
        **{str(column): None if cell == "" else cell for column, cell in enumerate(plain)},
        "texts": list(map(text_of, plain)),
        "times": {
            column: True for column, cell in enumerate(plain) if isinstance(cell, Instant) and 0 <= cell <= LAST_MS
        },
        "links": {column: cell.url for column, cell in enumerate(cells) if isinstance(cell, Link)},
    }


def text_of(value: Cell | float | None) -> str:
    """Return a cell as people read it."""
    if value is None or isinstance(value, str):
        return escaped(value or "")
    return f"{value:,.1f}" if isinstance(value, float) else shown(value)


class Facts:
    """Names and texts, one below the other."""

    def __init__(self) -> None:
        self._list = html.dl().classes("wl-facts")
        self._shown: Mapping[str, str] = {}

    def show(self, facts: Mapping[str, str]) -> None:
        """Show these in place of those before."""
        if facts == self._shown:
            return
        self._shown = facts
        self._list.clear()
        with self._list:
            for name, text in facts.items():
                html.dt(name.capitalize())
                html.dd(escaped(text))


class Chart:
    """Lines over time."""

    def __init__(self, label: str) -> None:
        gray = {"color": "#767676"}
        options: dict[str, Any] = {
            "animation": False,
            "title": {"text": label, "textStyle": {"fontSize": 13, **gray}},
            "tooltip": {"trigger": "axis"},
            "legend": {"bottom": 0, "textStyle": gray},
            "xAxis": {"type": "time", "axisLabel": {"hideOverlap": True, **gray}},
            "yAxis": {"type": "value", "axisLabel": gray, "splitLine": {"lineStyle": {"color": "#80808040"}}},
            "series": [],
        }
        self._plot = ui.echart(options).classes("wl-wide").style("height: 15rem")
        self._plot.props["role"], self._plot.props["aria-label"] = "img", label

    def draw(self, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        """Draw these lines of (milliseconds since 1970, figure)."""
        self._plot.options["series"] = [
            {"type": "line", "showSymbol": len(points) < 2, "name": name, "data": list(map(list, points))}
            for name, points in lines.items()
        ]
        self._plot.update()


def charts(*labels: str) -> list[Chart]:
    """Draw charts beside each other, as far as there is room."""
    with ui.grid(columns="repeat(auto-fit, minmax(min(100%, 26rem), 1fr))").classes("wl-wide"):
        return [Chart(label) for label in labels]
