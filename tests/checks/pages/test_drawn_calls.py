"""The calls drawn in docs/architecture.md: each step exists, names the next, and leaves a room for good."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/architecture.md"
MOST_FRAMES = 14
"""Of ours, from the servicer of RunPodSandbox to libxl."""

_STEP = re.compile(r"^ {2}(?P<path>\S+\.py) +(?P<name>\w+)(?: {2,}.*)?$")
_HELPERS = ("daemonkit/", "images/concurrency.py")
"""Words of concurrency, and no rooms: what they call, they are given."""
_RUNNERS = {
    ("protect/toolstack/libxl/workers.py", "run"),
    ("images/pull/pulls.py", "run"),
    ("images/pull/fetch.py", "read_first"),
}
"""Steps of a room that call what they are given."""


@dataclass(frozen=True)
class Step:
    path: str
    name: str

    @property
    def room(self) -> str:
        return str(Path(self.path).parent)

    @property
    def helper(self) -> bool:
        return self.path.startswith(_HELPERS)

    @property
    def runner(self) -> bool:
        return (self.path, self.name) in _RUNNERS


def drawings() -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for block in re.findall(r"^```\n(\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        steps = [
            Step(match["path"], match["name"])
            for line in block[1].splitlines()
            if (match := _STEP.match(line))
        ]
        if steps:
            found[block[0]] = steps
    return found


DRAWN = drawings()


def definitions(step: Step) -> Iterator[str]:
    source = (ROOT / step.path).read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == step.name:
            yield ast.get_source_segment(source, node) or ""


def test_the_three_calls_are_drawn() -> None:
    assert set(DRAWN) == {"RunPodSandbox", "PullImage", "Exec"}


@pytest.mark.parametrize("call", DRAWN)
def test_each_step_is_where_it_is_drawn(call: str) -> None:
    missing = [step for step in DRAWN[call] if not any(definitions(step))]
    assert missing == []


@pytest.mark.parametrize("call", DRAWN)
def test_each_step_names_the_next(call: str) -> None:
    steps = [step for step in DRAWN[call] if not step.helper]
    broken = []
    for number, (one, other) in enumerate(pairwise(steps)):
        caller = steps[number - 1] if one.runner else one
        if not any(re.search(rf"\b{other.name}\b", body) for body in definitions(caller)):
            broken.append(f"{caller.path} {caller.name} does not name {other.path} {other.name}")
    assert broken == []


@pytest.mark.parametrize("call", DRAWN)
def test_no_step_returns_into_a_room_that_was_left(call: str) -> None:
    rooms = [room for room, _ in groupby(step.room for step in DRAWN[call] if not step.helper)]
    assert len(rooms) == len(set(rooms)), rooms


def test_few_frames_lead_from_a_pod_to_its_domain() -> None:
    assert len(DRAWN["RunPodSandbox"]) <= MOST_FRAMES
