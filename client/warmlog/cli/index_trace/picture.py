"""A trace as a PNG: a row of pages for each search; the warm section is shaded, visited cells are numbered in order.

Drawn by Pillow, of the extra `picture`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from warmlog.cli.index_trace.trace import Column, IndexShape, Trace, columns_of, describe, summary
from warmlog.cli.terminal.exits import CommandFailed
from warmlog.extras import install_hint

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

MARGIN = 40
CELL_WIDTH, CELL_HEIGHT = 64, 64
GAP_WIDTH = 40
TITLE_HEIGHT = 110
ROW_HEIGHT = 176
ROW_TITLE_HEIGHT = 44
FOOT_HEIGHT = 56
MIN_WIDTH = 900

PAPER, INK, FAINT = "#ffffff", "#1f2933", "#7b8794"
EMPTY, EDGE = "#f5f7fa", "#9aa5b1"
WARM, WARM_EDGE = "#ffe8c2", "#e07b00"
VISITED = {"classic": "#2f6fb5", "warm/cold": "#c2410c"}


def check_pillow() -> None:
    """Raise CommandFailed if Pillow is not installed."""
    try:
        import PIL.ImageDraw  # noqa: F401
    except ImportError:
        raise CommandFailed(f"drawing a PNG needs Pillow: {install_hint('picture')}") from None


def draw_png(path: Path, index: IndexShape, target: str, traces: tuple[Trace, ...]) -> None:
    """Write the picture to `path`."""
    from PIL import Image, ImageDraw

    columns = columns_of(index, traces)
    row_width = sum(GAP_WIDTH if column.left_out else CELL_WIDTH for column in columns)
    subtitle = f"{index.name}: {describe(index)}"
    text_width = int(ImageDraw.Draw(Image.new("RGB", (1, 1))).textlength(subtitle, font_size=17))
    width = max(MIN_WIDTH, max(row_width, text_width) + 2 * MARGIN)
    image = Image.new("RGB", (width, TITLE_HEIGHT + ROW_HEIGHT * len(traces) + FOOT_HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    _text(draw, (MARGIN, 34), f"Looking for {target}", size=26)
    _text(draw, (MARGIN, 72), subtitle, size=17, color=FAINT)
    for number, trace in enumerate(traces):
        _draw_row(draw, TITLE_HEIGHT + number * ROW_HEIGHT, columns, index, trace)
    top = image.height - FOOT_HEIGHT + 10
    draw.rectangle((MARGIN, top, MARGIN + 24, top + 24), fill=WARM, outline=WARM_EDGE, width=2)
    _text(draw, (MARGIN + 34, top + 12), "warm section (last 8,192 bytes)", size=16)
    left = MARGIN + 330
    for color in VISITED.values():
        draw.ellipse((left, top, left + 24, top + 24), fill=color)
        left += 30
    _text(draw, (left + 4, top + 12), "page visited; the number says in which order", size=16)
    image.save(path, "PNG")


def _draw_row(draw: "ImageDraw", top: int, columns: list[Column], index: IndexShape, trace: Trace) -> None:
    _text(draw, (MARGIN, top + 18), trace.name, size=22, color=VISITED[trace.name])
    left_of_summary = MARGIN + 10 + int(draw.textlength(trace.name, font_size=22)) + 10
    _text(draw, (left_of_summary, top + 20), summary(trace), size=17)
    left, top = MARGIN, top + ROW_TITLE_HEIGHT
    for page, left_out in columns:
        if left_out:
            middle = (left + GAP_WIDTH // 2, top + CELL_HEIGHT // 2)
            draw.text(middle, "…", fill=FAINT, font_size=24, anchor="mm")
            draw.text((middle[0], top + CELL_HEIGHT + 18), f"{left_out:,}", fill=FAINT, font_size=12, anchor="mm")
            left += GAP_WIDTH
            continue
        _draw_cell(draw, left, top, page, index, trace)
        left += CELL_WIDTH


def _draw_cell(draw: "ImageDraw", left: int, top: int, page: int, index: IndexShape, trace: Trace) -> None:
    is_warm = page in index.warm_pages
    box = (left + 2, top, left + CELL_WIDTH - 2, top + CELL_HEIGHT)
    draw.rectangle(box, fill=WARM if is_warm else EMPTY, outline=WARM_EDGE if is_warm else EDGE, width=2)
    middle = (left + CELL_WIDTH // 2, top + CELL_HEIGHT // 2)
    if page in trace.pages:
        circle = (middle[0] - 22, middle[1] - 22, middle[0] + 22, middle[1] + 22)
        draw.ellipse(circle, fill=VISITED[trace.name])
        order = str(trace.pages.index(page) + 1)
        draw.text(middle, order, fill=PAPER, font_size=24, anchor="mm")
    draw.text((middle[0], top + CELL_HEIGHT + 18), f"{page:,}", fill=INK, font_size=17, anchor="mm")


def _text(draw: "ImageDraw", at: tuple[int, int], text: str, *, size: int, color: str = INK) -> None:
    draw.text(at, text, fill=color, font_size=size, anchor="lm")
