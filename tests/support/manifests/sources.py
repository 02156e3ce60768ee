"""Gets manifests as a user does: from ``protect generate``, or the chart."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from protectctl.__main__ import main
from tests.support.cluster.api import Object

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
CHART = DEPLOY / "chart"
SHIPPED = ("--config", str(DEPLOY.parent / "packaging" / "cri.toml"))
ALL = ("classes", "assign-class", "keep-off-host", "keep-off-delegate", "labeller")
"""All kinds of objects in the chart with default values."""

NAMESPACE = "kube-system"

needs_helm = pytest.mark.skipif(not shutil.which("helm"), reason="helm is not on PATH")


class ToolRefused(Exception):
    """helm ended with an error; the exception has the text."""


def read(text: str) -> list[Object]:
    """Read the objects of a YAML text; empty documents are left out."""
    # As JSON and back: plain dicts and lists, and an error for values outside of JSON, such as a date.
    return [json.loads(json.dumps(one)) for one in YAML(typ="safe", pure=True).load_all(text) if one]


@functools.cache
def generate(*arguments: str) -> str:
    """The output of ``protect generate``."""
    # In a thread of its own: the command runs an event loop, and the caller may already run one.
    with contextlib.redirect_stdout(io.StringIO()) as said, ThreadPoolExecutor(1) as thread:
        assert thread.submit(main, ["generate", *arguments]).result() == 0
    return said.getvalue()


def defaults(*arguments: str) -> list[Object]:
    """The objects that ``protect generate`` makes for a node with the shipped configuration."""
    return read(generate(*SHIPPED, *ALL, *arguments))


def chart(*values: Path, kubernetes: str = "1.36", sets: Iterable[str] = ()) -> list[Object]:
    """What ``helm template`` makes of the chart, with files of values and ``--set`` values."""
    more = [word for one in values for word in ("--values", str(one))]
    more += [word for one in sets for word in ("--set", one)]
    text = _run(
        *("helm", "template", "xenpod", str(CHART), "--namespace", NAMESPACE),
        *("--kube-version", f"{kubernetes}.0", *more),
    )
    return read(text)


def by_name(objects: Iterable[Object]) -> dict[tuple[str, str, str], Object]:
    """Objects by API version, kind and name, each only once."""
    found: dict[tuple[str, str, str], Object] = {}
    for one in objects:
        key = (one["apiVersion"], one["kind"], one["metadata"]["name"])
        assert key not in found, f"{key} is there twice"
        found[key] = one
    return found


@functools.lru_cache(maxsize=64)
def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolRefused(f"{' '.join(command[:2])}: {done.stderr.strip()}")
    return done.stdout
