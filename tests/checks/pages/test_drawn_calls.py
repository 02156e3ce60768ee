"""The calls drawn in docs/architecture.md: each step exists, and no path returns to a folder."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/architecture.md"
MOST_FRAMES = 14
"""Of ours, from the servicer of RunPodSandbox to libxl."""

_STEP = re.compile(r"^ {2}(?P<path>\S+\.py) +(?P<name>\w+)(?: {2,}.*)?$")
_HELPERS = ("daemonkit/", "images/concurrency.py")
"""Helpers for concurrency run functions of any folder."""


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


def is_defined(step: Step) -> bool:
    nodes = ast.walk(ast.parse((ROOT / step.path).read_text()))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return any(function.name == step.name for function in functions)


def test_the_four_calls_are_drawn() -> None:
    assert set(DRAWN) == {"RunPodSandbox", "CreateZone", "PullImage", "Exec"}


@pytest.mark.parametrize("call", DRAWN)
def test_each_drawn_step_exists(call: str) -> None:
    missing = [step for step in DRAWN[call] if not is_defined(step)]
    assert missing == []


@pytest.mark.parametrize("call", DRAWN)
def test_no_step_returns_to_an_earlier_room(call: str) -> None:
    rooms = [room for room, _ in groupby(step.room for step in DRAWN[call] if not step.helper)]
    assert len(rooms) == len(set(rooms)), rooms


def test_few_frames_lead_from_a_pod_to_its_domain() -> None:
    assert len(DRAWN["RunPodSandbox"]) <= MOST_FRAMES
