"""The shape of the tree: unique class names, a single owner of cancellation, true docs; notes on sizes."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checks.packages import CHECKED, LAYERED, PACKAGES, ROOT, STUBS, TESTS, C, note

SIBLINGS = 16
"""Limit of files and folders in one folder, without ``__init__.py``: beyond about fifteen a level is missing.
"""

_PATH = re.compile(rf"`((?:{'|'.join(PACKAGES)}|{'|'.join(C)}|proto|packaging|deploy|tests|docs)/[^`\s]*)`")

_MADE_OR_MANY = re.compile(r"^zone/build|\.\.\.|NNNN")
"""Names of build results, and names with placeholders."""


def tracked(*patterns: str) -> list[Path]:
    """Files that git tracks or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in sorted(set(done.stdout.split())) if (path := ROOT / name).exists()]


def classes(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            yield node.name


def product() -> list[Path]:
    return tracked(*(f"{package}/*.py" for package in PACKAGES))


def test_all_checks_share_the_list_of_packages() -> None:
    assert set(LAYERED) - {STUBS} == set(CHECKED) - {TESTS}
    folders = {
        path.relative_to(ROOT).parts[0] for path in tracked("*/__init__.py") if "proto" not in path.parts
    }
    assert set(PACKAGES) == folders - {TESTS}


def test_folders_with_many_files_are_noted() -> None:
    children: defaultdict[Path, set[str]] = defaultdict(set)
    for path in tracked():
        parts = path.relative_to(ROOT).parts
        for depth, name in enumerate(parts):
            if name != "__init__.py" and len(parts) > 1:
                children[Path(*parts[:depth])].add(name if depth == len(parts) - 1 else f"{name}/")
    # C modules are pairs. Generated stubs, files of the root, numbered decisions and files with debhelper's
    # names are exempt.
    long = {
        str(folder): len(names)
        for folder, found in children.items()
        if (names := {re.sub(r"\.[ch]$", "", name) for name in found})
        and len(names) > SIBLINGS
        and folder.parts[:1] not in [(), ("proto",)]
        and folder not in (Path("docs/adr"), Path("packaging/debian"))
    }
    for folder, count in long.items():
        note(f"{folder} has {count} files and folders; more than {SIBLINGS} may miss a level")


def test_class_names_are_unique() -> None:
    owners: defaultdict[str, list[str]] = defaultdict(list)
    for path in product():
        for name in classes(path):
            owners[name].append(str(path.relative_to(ROOT)))
    assert len(owners) > 100
    shared = {name: paths for name, paths in owners.items() if len(paths) > 1}
    assert shared == {}


def test_a_single_module_shields() -> None:
    shields = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in product()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
        and (node.attr if isinstance(node, ast.Attribute) else node.id) == "shield"
    ]
    assert shields
    assert {shield.partition(":")[0] for shield in shields} == {"daemonkit/tasks.py"}


@pytest.mark.parametrize(
    "page", [str(path.relative_to(ROOT)) for path in tracked("*.md") if path.name != "CHANGELOG.md"]
)
def test_pages_name_existing_files(page: str) -> None:
    named = {match.rstrip("/") for match in _PATH.findall((ROOT / page).read_text())}
    of_one_file = [name for name in sorted(named) if not _MADE_OR_MANY.search(name)]
    gone = [name for name in of_one_file if not any(ROOT.glob(name))]
    assert gone == []


def test_each_start_of_a_process_settles_the_child() -> None:
    """See daemonkit/host/children.py."""
    starts = re.compile(
        r"\b(subprocess\.(run|Popen|call|check_\w+)|create_subprocess_\w+|os\.(fork|posix_spawn\w*))\("
    )
    daemons = tracked("cri/*.py", "protect/*.py", "daemonkit/*.py")
    found = {path.relative_to(ROOT): path.read_text() for path in daemons}
    assert [str(path) for path, text in found.items() if starts.search(text) and "settle" not in text] == []
    assert sum(bool(starts.search(text)) for text in found.values()) >= 5


def test_c_and_python_agree_on_the_score_of_a_child() -> None:
    from daemonkit.host.children import SCORE

    text = (ROOT / "hostc/common/ordinary.c").read_text()
    assert f'SCORE[] = "{SCORE}"' in text
