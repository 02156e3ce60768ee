"""Fixtures: the Debian packages, built once a session, and the same packages with a later version."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages import trees
from tests.packages.machine import Machine
from tests.packages.trees import ROOT

BUILT = ROOT / "build" / "deb"
LATER = "99.0"


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder of this checkout's packages; built if the folder has none."""
    if not list(BUILT.glob("*.deb")):
        subprocess.run(["make", "--silent", "deb"], cwd=ROOT, check=True)
    return BUILT


@pytest.fixture(scope="session")
def later(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same packages with a later version, which they require of each other."""
    folder = tmp_path_factory.mktemp("later")
    for package in packages.glob("*.deb"):
        tree = folder / package.stem
        subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
        control = tree / "DEBIAN" / "control"
        now = subprocess.run(
            ["dpkg-deb", "--field", package, "Version"], check=True, capture_output=True, text=True
        ).stdout.strip()
        text = control.read_text()
        control.write_text(
            text.replace(f"Version: {now}\n", f"Version: {LATER}\n").replace(f"(= {now})", f"(= {LATER})")
        )
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", "-Znone", tree, folder], check=True)
    return folder


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A small Debian, not booted."""
    tree = tmp_path / tmp_path.name
    trees.small(tree)
    made = Machine(tree)
    try:
        yield made
    finally:
        made.close()
