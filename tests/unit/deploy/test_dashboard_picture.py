"""The picture of the dashboard is of the dashboard as it is, and is drawn to scale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tools.docgen.dashboard import PanelSeries, draw, key, legend, queries
from tools.docgen.scales import ticks, written

ROOT = Path(__file__).parents[3]
PICTURE = ROOT / "docs" / "examples" / "dashboard.svg"
SVG = "{http://www.w3.org/2000/svg}"
AGAIN = "it is old: python -m tests.support.observe.dashboard docs/examples/dashboard.svg"


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "deploy/observability/dashboard.json").read_text())[
        "panels"
    ]
    return found


def drawn(picture: str) -> list[tuple[str, str, list[str]]]:
    """Key, title and queries of each panel in a picture, in their order."""
    groups = ElementTree.fromstring(picture).iter(f"{SVG}g")
    return [
        (
            str(group.get("data-key")),
            next(
                text.text or "" for text in group.iter(f"{SVG}text") if text.get("class") in ("title", "row")
            ),
            [desc.text or "" for desc in group.iter(f"{SVG}desc")],
        )
        for group in groups
    ]


def test_it_shows_the_panels_of_the_dashboard() -> None:
    expected = [(key(panel), panel["title"], queries(panel)) for panel in panels()]
    assert drawn(PICTURE.read_text()) == expected, AGAIN


def test_each_panel_in_it_has_data() -> None:
    assert "No data" not in PICTURE.read_text()


def test_a_panel_that_changes_is_noticed() -> None:
    changed = panels()
    changed[1]["targets"][0]["expr"] += " > 0"
    assert drawn(draw(changed, {}, 60)) != drawn(draw(panels(), {}, 60))


def test_names_are_text_and_lines_are_to_scale() -> None:
    panel = {
        "type": "timeseries",
        "title": "A & B",
        "gridPos": {"x": 0, "y": 0, "w": 8, "h": 8},
        "fieldConfig": {"defaults": {"unit": "s"}},
        "targets": [{"expr": 'a{b="c"} < 1', "legendFormat": "{{name}}"}],
    }
    series = PanelSeries("<script>", ((-60.0, 0.0), (-30.0, 1.0), (0.0, 0.5)))
    picture = draw([panel], {key(panel): [series]}, 60)
    assert drawn(picture) == [("A & B@0,0,8,8", "A & B", ['a{b="c"} < 1'])]
    root = ElementTree.fromstring(picture)
    assert "<script>" in {text.text for text in root.iter(f"{SVG}text")}
    (line,) = (path.get("d") for path in root.iter(f"{SVG}path") if path.get("class") == "line")
    points = [tuple(map(float, point.split())) for point in str(line)[1:].split("L")]
    (left, low), (middle, high), (right, half) = points
    assert middle == pytest.approx((left + right) / 2, abs=0.2)
    assert high < half < low and half == pytest.approx((low + high) / 2, abs=0.2)
    assert {"0 s", "1 s"} <= {text.text for text in root.iter(f"{SVG}text") if text.get("class") == "tick"}


def test_legends_are_of_labels() -> None:
    assert legend("{{job}}: lost {{ none }}", {"job": "protectd"}) == "protectd: lost "


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "s", "0 s"), (0.0000012, "s", "1.2 µs"), (0.25, "s", "250 ms"), (90, "s", "90 s"),
        (0, "bytes", "0 B"), (1536, "bytes", "1.5 KiB"), (3 << 30, "bytes", "3 GiB"),
        (2048, "Bps", "2 KiB/s"),
        (0, "short", "0"), (0.02, "short", "0.02"), (7, "short", "7"), (2500, "short", "2.5 K"),
    ],
)  # fmt: skip
def test_values_are_written_in_their_units(value: float, unit: str, text: str) -> None:
    assert written(value, unit) == text


@pytest.mark.parametrize("unit", ["short", "bytes", "s", "Bps"])
@pytest.mark.parametrize(
    "highest", [0.0, 1e-6, 0.3, 1.0, 7.0, 99.0, 512.0, 70000.0, 300 << 20, 15.5 * (1 << 30)]
)
def test_ticks_reach_over_the_highest_value(highest: float, unit: str) -> None:
    found = ticks(highest, unit)
    assert found[0] == 0 and found[-1] >= highest and 2 <= len(found) <= 6
    assert found == sorted(found)
