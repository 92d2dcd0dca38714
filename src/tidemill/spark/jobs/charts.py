"""Small charts as SVG text: no library, nothing to load, one look with every page that has them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH = 640
BAR_HEIGHT = 22
COLUMNS_HEIGHT = 160
LABEL_WIDTH = 190
ACCENT = "#2b6cb0"
INK = "#2d3748"
FONT = "font-family='system-ui, sans-serif' font-size='12'"


def bars(rows: Sequence[tuple[str, float]], *, unit: str = "") -> str:
    """Horizontal bars with their labels and values, in the order given."""
    top = max((value for _, value in rows), default=0) or 1
    room = WIDTH - LABEL_WIDTH - 90
    parts = []
    for number, (label, value) in enumerate(rows):
        y = number * BAR_HEIGHT
        width = max(1, round(value / top * room))
        parts.append(
            f"<text x='{LABEL_WIDTH - 8}' y='{y + 15}' text-anchor='end' fill='{INK}' {FONT}>"
            f"{escape(_short(label))}</text>"
            f"<rect x='{LABEL_WIDTH}' y='{y + 3}' width='{width}' height='{BAR_HEIGHT - 6}'"
            f" rx='2' fill='{ACCENT}'/>"
            f"<text x='{LABEL_WIDTH + width + 6}' y='{y + 15}' fill='{INK}' {FONT}>"
            f"{escape(_number(value) + unit)}</text>"
        )
    return drawing("".join(parts), BAR_HEIGHT * max(1, len(rows)))


def columns(rows: Sequence[tuple[str, float]]) -> str:
    """Vertical columns, as many as fit, with a label under every few of them."""
    top = max((value for _, value in rows), default=0) or 1
    step = (WIDTH - 20) / max(1, len(rows))
    every = max(1, round(40 / step))
    parts = []
    for number, (label, value) in enumerate(rows):
        height = round(value / top * (COLUMNS_HEIGHT - 40))
        x, y = 10 + number * step, COLUMNS_HEIGHT - 20 - height
        parts.append(
            f"<rect x='{x + 1:.1f}' y='{y}' width='{max(1.0, step - 2):.1f}' height='{height}'"
            f" fill='{ACCENT}'><title>{escape(label)}: {escape(_number(value))}</title></rect>"
        )
        if number % every == 0:
            parts.append(
                f"<text x='{x + step / 2:.1f}' y='{COLUMNS_HEIGHT - 5}' text-anchor='middle'"
                f" fill='{INK}' {FONT}>{escape(label)}</text>"
            )
    parts.append(f"<text x='10' y='12' fill='{INK}' {FONT}>{escape(_number(top))}</text>")
    return drawing("".join(parts), COLUMNS_HEIGHT)


def drawing(inside: str, height: int) -> str:
    """What is drawn inside, as one picture of the usual width."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}'"
        f" width='{WIDTH}' height='{height}' role='img'>{inside}</svg>"
    )


def _short(label: str, longest: int = 28) -> str:
    return label if len(label) <= longest else label[: longest - 1] + "…"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
