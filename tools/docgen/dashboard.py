"""Draws a Grafana dashboard as one SVG: its panels in their places, with the data of their own queries.

Grafana itself draws it otherwise in details; titles, units, legends, queries and places are the dashboard's.
The queries are in the picture, too (``desc``), so that a test sees when it has become old.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from tools.docgen.scales import ticks, written

COLUMNS, WIDTH = 24, 1440
UNIT = 27
"""Pixels of a row of the grid."""
_GAP = 4
_COLOURS = (
    "#3f8f3f", "#c99700", "#2a7fb8", "#d9662b", "#c4302b", "#8f3b8a", "#5b6abf", "#1f8a84", "#8a6d3b",
    "#d36ba6", "#6b7d2c", "#4d4d4d",
)  # fmt: skip
_AXIS = 66
_LEGEND_LINE = 15
_WIDE, _NARROW = 7.9, 6.1
"""Pixels of a letter, more or less."""
_STYLE = """
text { font: 11px Helvetica, Arial, sans-serif; fill: #3b3f46 }
.title { font-size: 13px; font-weight: bold; fill: #1c1f24 }
.row { font-size: 15px; font-weight: bold; fill: #1c1f24 }
.value { font-size: 26px; font-weight: bold; text-anchor: middle }
.name { text-anchor: middle }
.tick { text-anchor: end; fill: #6b7078 }
.time { text-anchor: middle; fill: #6b7078 }
.first { text-anchor: start }
.panel > rect { fill: #fff; stroke: #d5d8dd }
.grid { stroke: #e6e8eb }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round }
"""


@dataclass(frozen=True, slots=True)
class PanelSeries:
    """What a query returned under one name: (seconds before the end as a negative number, value) in order."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    width: float
    height: float


def legend(form: str, labels: Mapping[str, str]) -> str:
    """The name of a series, by Grafana's ``legendFormat``."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), form)


def queries(panel: Mapping[str, Any]) -> list[str]:
    """The expressions of a panel, as the dashboard has them."""
    return [str(target["expr"]) for target in panel.get("targets", [])]


def draw(
    panels: Sequence[Mapping[str, Any]], data: Mapping[str, Sequence[PanelSeries]], seconds: float
) -> str:
    """The picture.  ``data``: series by a panel's title and grid place (``key``), of the last ``seconds``."""
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * UNIT
    lines = [
        f'<svg viewBox="0 0 {WIDTH} {height}" xmlns="http://www.w3.org/2000/svg">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#f4f5f7"/>',
    ]
    for panel in panels:
        lines += _panel(panel, data.get(key(panel), ()), seconds)
    return "\n".join([*lines, "</svg>"]) + "\n"


def key(panel: Mapping[str, Any]) -> str:
    """What tells panels apart: two may have the same title."""
    place = panel["gridPos"]
    return f"{panel['title']}@{place['x']},{place['y']},{place['w']},{place['h']}"


def _panel(panel: Mapping[str, Any], series: Sequence[PanelSeries], seconds: float) -> Iterator[str]:
    place = panel["gridPos"]
    column = WIDTH / COLUMNS
    box = _Box(
        place["x"] * column + _GAP / 2,
        place["y"] * UNIT + _GAP / 2,
        place["w"] * column - _GAP,
        place["h"] * UNIT - _GAP,
    )
    yield f'<g class="panel" data-key="{escape(key(panel), {chr(34): "&quot;"})}">'
    yield from (f"<desc>{escape(one)}</desc>" for one in queries(panel))
    if panel["type"] == "row":
        yield _text("row", box.left + 6, box.top + 18, panel["title"])
    else:
        unit = str(panel["fieldConfig"]["defaults"].get("unit", "short"))
        yield f'<rect x="{box.left:g}" y="{box.top:g}" width="{box.width:g}" height="{box.height:g}" rx="3"/>'
        yield _text("title", box.left + 10, box.top + 19, panel["title"])
        if not series:
            yield _text("name", box.left + box.width / 2, box.top + box.height / 2 + 8, "No data")
        elif panel["type"] == "stat":
            yield from _stats(box, series, unit)
        else:
            yield from _chart(box, series, unit, seconds)
    yield "</g>"


def _stats(box: _Box, series: Sequence[PanelSeries], unit: str) -> Iterator[str]:
    share = box.width / len(series)
    for number, one in enumerate(series):
        middle = box.left + share * (number + 0.5)
        yield _text("value", middle, box.top + box.height * 0.62, written(one.points[-1][1], unit))
        yield _text("name", middle, box.top + box.height * 0.85, one.name)


def _chart(box: _Box, series: Sequence[PanelSeries], unit: str, seconds: float) -> Iterator[str]:
    below = _legend_lines(box, series)
    plot = _Box(
        box.left + _AXIS, box.top + 32, box.width - _AXIS - 14, box.height - 54 - len(below) * _LEGEND_LINE
    )
    marks = ticks(max(value for one in series for _, value in one.points), unit)
    for mark in marks:
        y = plot.top + plot.height * (1 - mark / marks[-1])
        yield f'<path class="grid" d="M{plot.left:g} {y:.1f}h{plot.width:g}"/>'
        yield _text("tick", plot.left - 6, y + 4, written(mark, unit))
    yield from _times(plot, seconds)
    for number, one in enumerate(series):
        points = [_point(plot, 1 + at / seconds, value / marks[-1]) for at, value in one.points]
        path = "L".join(_bends(points))
        yield f'<path class="line" stroke="{_colour(number)}" d="M{path}"/>'
    for line, row in enumerate(below):
        y = box.top + box.height - 8 - (len(below) - 1 - line) * _LEGEND_LINE
        for left, number, name in row:
            yield f'<path stroke="{_colour(number)}" stroke-width="3" d="M{left:g} {y - 4:g}h12"/>'
            yield _text("legend", left + 17, y, name)


def _point(plot: _Box, along: float, up: float) -> str:
    """A point of a plot by its shares of width and height."""
    return f"{plot.left + plot.width * along:.1f} {plot.top + plot.height * (1 - up):.1f}"


def _bends(points: Sequence[str]) -> Iterator[str]:
    """The points without those in the middle of a level line: they are most of a picture's bytes."""
    heights = [point.partition(" ")[2] for point in points]
    for number, point in enumerate(points):
        if len({*heights[max(0, number - 1) : number + 2]}) > 1 or number in (0, len(points) - 1):
            yield point


def _times(plot: _Box, seconds: float) -> Iterator[str]:
    minutes = int(seconds // 60)
    for minute in range(minutes + 1):
        x = plot.left + plot.width * (1 - minute * 60 / seconds)
        yield f'<path class="grid" d="M{x:.1f} {plot.top:g}v{plot.height:g}"/>'
        kind = "time first" if x < plot.left + 20 else "time"
        yield _text(kind, x, plot.top + plot.height + 14, f"-{minute} min" if minute else "now")


def _legend_lines(box: _Box, series: Sequence[PanelSeries]) -> list[list[tuple[float, int, str]]]:
    """Where each name is, line by line: left, number of its series, name."""
    lines: list[list[tuple[float, int, str]]] = [[]]
    left = box.left + 12
    for number, one in enumerate(series):
        width = 17 + sum(_WIDE if letter.isupper() else _NARROW for letter in one.name) + 14
        if lines[-1] and left + width > box.left + box.width:
            lines.append([])
            left = box.left + 12
        lines[-1].append((left, number, one.name))
        left += width
    return lines


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def titles(picture: str) -> Iterable[str]:
    """The panels' titles in a picture, in their order."""
    return re.findall(r'<text class="(?:title|row)"[^>]*>([^<]*)</text>', picture)
