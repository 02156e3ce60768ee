"""The recipe of the image: its copied files exist and are enough, the built wheel is ours, and the image
runs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from cluster.labeller.__main__ import parser
from tests.checks.packages import PACKAGES, STUBS
from tests.support.manifests.sources import defaults
from xenbind.build import HEADERS

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "deploy" / "image" / "Containerfile"
TOP = "/opt/xenpod"


def instructions() -> list[tuple[str, str]]:
    """The name and text of each instruction."""
    lines = RECIPE.read_text().splitlines()
    found = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(name, text) for name, _, text in found]


def copied() -> dict[str, str]:
    """The paths that the first stage copies from the checkout: source to destination."""
    build = instructions()[: [name for name, _ in instructions()].index("FROM", 1)]
    found: dict[str, str] = {}
    for words in (shlex.split(text) for name, text in build if name == "COPY"):
        *sources, into = words
        found |= dict.fromkeys(sources, into)
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel, built by the first stage from its copied files alone."""
    source, wheels = tmp_path_factory.mktemp("src"), tmp_path_factory.mktemp("wheels")
    for name, into in copied().items():
        if (ROOT / name).is_dir():
            skip = shutil.ignore_patterns("__pycache__", "_libxl*", "*.o")
            shutil.copytree(ROOT / name, source / into, ignore=skip)
        else:
            shutil.copy(ROOT / name, source / into / name)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--disable-pip-version-check", "--no-index", "--wheel-dir", wheels, source),
        ],
        check=True,
        capture_output=True,
    )
    return wheels


def wheel(folder: Path) -> Path:
    [found] = folder.glob("xenpod-*-py3-none-any.whl")
    return found


def test_the_recipe_copies_the_sources_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    paths = {"proto" if name == "xenpod_proto" else name for name in packages}
    files = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    assert {name.rstrip("/") for name in copied()} == paths | files


def test_the_wheel_has_our_packages_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(wheel(built)) as found:
        names = {name for name in found.namelist() if ".dist-info/" not in name}
    ours = {*PACKAGES, STUBS} - {"tools"}
    assert {name.partition("/")[0] for name in names} == ours
    known = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    here = {name.removeprefix("proto/") for name in known if (ROOT / name).exists()}
    code = {name for name in here if name.partition("/")[0] in ours}
    assert {name for name in names if name.endswith(".py")} == code
    stubs = {name for name in names if name.endswith(".pyi")}
    assert names - code - stubs == {
        "cri/oci/seccomp-default.json",
        "cri/streaming/spdy/header-dictionary.bin",
        "xenbind/binding.c",
        "xenbind/binding.cdef.h",
        "xenpod_proto/py.typed",
    }


@pytest.mark.skipif(
    not (shutil.which("cc") and all(header.exists() for header in HEADERS)),
    reason="needs a C compiler and libxen-dev (make setup)",
)
def test_the_binding_is_built_from_the_wheel(built: Path, tmp_path: Path) -> None:
    """In a place without the checkout; cffi comes from the environment of the tests."""
    with zipfile.ZipFile(wheel(built)) as found:
        found.extractall(tmp_path)
    # -S: the checkout is on the path of the environment; -P: and the current folder is not.
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(pytest.__file__).parents[1]}", "PATH": os.environ["PATH"]}
    python = [sys.executable, "-S", "-P"]
    build = [*python, "-m", "xenbind.build", "--required"]
    done = subprocess.run(build, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    show = "from xenbind import _libxl; print(_libxl.__file__)"
    shown = subprocess.run([*python, "-c", show], env=environment, cwd="/", capture_output=True, text=True)
    assert Path(shown.stdout.strip()).parent == tmp_path / "xenbind", shown.stderr


def test_the_recipe_builds_a_working_program(built: Path, tmp_path: Path) -> None:
    """The recipe's own commands, in another place; dependencies come from the environment of the tests."""
    commands = [text for name, text in instructions() if name == "RUN"]
    assert len(commands) == 3
    top = tmp_path / "top"
    for command in commands:
        here = command.replace(TOP, str(top)).replace("python ", f"{sys.executable} ", 1)
        if "pip install" in here:
            here = re.sub(r' "\.\[kubernetes\]"$', f" --no-deps --no-index {wheel(built)}", here)
        subprocess.run(here, shell=True, check=True, capture_output=True, cwd=tmp_path)
    [entry] = [text for name, text in instructions() if name == "ENTRYPOINT"]
    program = entry.strip('[]"').replace(TOP, str(top))
    done = subprocess.run(
        [program, "--help"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(pytest.__file__).parents[1])},
    )
    assert "usage: xenpod-labels" in done.stdout
    assert not (top / "bin" / "pip").exists()


def test_the_manifests_run_the_program_of_the_image() -> None:
    [entry] = [json.loads(text) for name, text in instructions() if name == "ENTRYPOINT"]
    [daemon_set] = [one for one in defaults() if one["kind"] == "DaemonSet"]
    [container] = daemon_set["spec"]["template"]["spec"]["containers"]
    assert container["command"] == entry
    parser().parse_args(container["args"])  # other arguments end the test


def test_the_image_is_not_roots() -> None:
    [user] = [text for name, text in instructions() if name == "USER"]
    assert user == "65532:65532"
