"""The lock of the Debian packages' Python dependencies: complete, with the hashes of all files."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "packaging" / "lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENTRY = re.compile(
    r"^(?P<name>\S+)(?P<rest>.*?)(?P<hashes>(?: *\\\n    --hash=sha256:[0-9a-f]{64})+)\n", re.M
)


def locked(name: str) -> dict[str, Requirement]:
    """The entries of a file, by the canonical name of their package."""
    text = "".join(
        line
        for line in (LOCK / name).read_text().splitlines(keepends=True)
        if not line.lstrip().startswith("#")
    )
    assert ENTRY.sub("", text) == "", "each line belongs to an entry with hashes"
    found = [Requirement(match["name"] + match["rest"]) for match in ENTRY.finditer(text)]
    assert found and all([one.operator for one in entry.specifier] == ["=="] for entry in found)
    return {canonicalize_name(one.name): one for one in found}


WANTED: dict[str, list[str]] = {
    "base.txt": PROJECT["project"]["dependencies"],
    "cluster.txt": [
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["kubernetes"],
    ],
    "build.txt": PROJECT["build-system"]["requires"],
}


@pytest.mark.parametrize("name", WANTED)
def test_the_lock_fits_the_project_and_its_dependencies(name: str) -> None:
    """The dependencies of dependencies, too. If the test fails, run ``make lock``."""
    found = locked(name)
    open_, seen = [Requirement(one) for one in WANTED[name]], set[str]()
    while open_:
        asked = open_.pop()
        key = canonicalize_name(asked.name)
        assert key in found, f"{asked} is not locked"
        (pin,) = found[key].specifier
        assert asked.specifier.contains(pin.version, prereleases=True), f"{asked}, and locked is {pin}"
        if key not in seen and (asked.marker is None or asked.marker.evaluate({"extra": ""})):
            seen.add(key)
            needs = map(Requirement, requires(asked.name) or ())
            extras = ("", *asked.extras)
            open_ += [
                one
                for one in needs
                if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
            ]


def test_the_package_for_clusters_has_the_same_versions() -> None:
    base, cluster = locked("base.txt"), locked("cluster.txt")
    assert {name: one.specifier for name, one in base.items()} == {
        name: one.specifier for name, one in cluster.items() if name in base
    }


def test_no_registry_is_named() -> None:
    assert not [path.name for path in LOCK.iterdir() if re.search(r"://|--(extra-)?index", path.read_text())]


def test_the_packages_are_made_of_the_lock_alone() -> None:
    recipe = (ROOT / "packaging" / "Makefile").read_text()
    assert "LOCKED := --require-hashes --only-binary :all: --requirement packaging/lock\n" in recipe
    installs = [line for line in recipe.splitlines() if line.startswith("\t") and "INSTALL)" in line]
    installs += [line for line in recipe.splitlines() if line.startswith("\t") and "(PIP) install" in line]
    assert len(installs) == 4
    assert all("$(LOCKED)/" in line or "--no-index" in line for line in installs)
    assert "wheel --no-deps --no-build-isolation" in recipe, "nothing is fetched to build ours"
