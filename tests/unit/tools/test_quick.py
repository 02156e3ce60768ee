"""``make quick`` finds the files of a change, and their unit tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from tools import quick

FILES = (
    "protect/__init__.py",
    "protect/zones/launch.py",
    "protect/volumes/host_volumes.py",
    "xenbind/__init__.py",
    "tests/__init__.py",
    "tests/unit/protect/test_zones.py",
    "tests/unit/protect/volumes/test_host.py",
    "zone/agent/main.c",
    "README.md",
)


def paths(*names: str) -> list[PurePosixPath]:
    return [PurePosixPath(name) for name in names]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


def git(tree: Path, *arguments: str) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", *author, *arguments], cwd=tree, check=True, capture_output=True)


@pytest.fixture
def repository(tree: Path) -> Path:
    """The tree, committed on main; a branch is checked out."""
    git(tree, "init", "--initial-branch=main")
    git(tree, "add", ".")
    git(tree, "commit", "--message=first")
    git(tree, "checkout", "-b", "branch")
    return tree


def test_an_unchanged_tree_has_no_changes(repository: Path) -> None:
    assert quick.changed(repository) == []


def test_edited_untracked_removed_and_committed_files_are_changes(repository: Path) -> None:
    (repository / "protect/zones/launch.py").write_text("committed = 1\n")
    git(repository, "commit", "--all", "--message=second")
    (repository / "protect/volumes/host_volumes.py").write_text("edited = 1\n")
    (repository / "xenbind/new file.py").write_text("")
    git(repository, "mv", "README.md", "renamed.md")
    assert quick.changed(repository) == paths(
        "README.md",
        "protect/volumes/host_volumes.py",
        "protect/zones/launch.py",
        "renamed.md",
        "xenbind/new file.py",
    )


def test_without_a_main_branch_commits_are_no_changes(repository: Path) -> None:
    git(repository, "branch", "--delete", "main")
    (repository / "README.md").write_text("edited")
    assert quick.changed(repository) == paths("README.md")


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["protect/volumes/host_volumes.py"], ["tests/unit/protect/volumes"]),
        (["protect/volumes"], ["tests/unit/protect/volumes"]),
        (["protect/zones/launch.py"], ["tests/unit/protect"]),
        (["protect/zones", "protect/volumes"], ["tests/unit/protect"]),
        (["tests/unit/protect/test_zones.py"], ["tests/unit/protect/test_zones.py"]),
        (["tests/unit/protect/gone.py", "tests/unit/protect/test_zones.py"], ["tests/unit/protect"]),
        (["zone/agent/main.c", "README.md", "tests/conftest.py"], []),
    ],
)
def test_the_tests_of_a_change_lie_in_its_mirror(tree: Path, changed: list[str], tests: list[str]) -> None:
    assert quick.unit_tests(tree, paths(*changed)) == (paths(*tests), [])


def test_a_package_without_unit_tests_is_named(tree: Path) -> None:
    assert quick.unit_tests(tree, paths("xenbind/__init__.py")) == ([], paths("xenbind"))


def test_steps_fit_the_change(tree: Path) -> None:
    def names(*changed: str) -> list[str]:
        return [step.name for step in quick.steps(tree, paths(*changed), [])]

    every = ["ruff check", "ruff format", "mypy", "import rules"]
    assert names("protect/zones") == names("protect/zones/launch.py") == every
    assert names("protect/removed.py") == ["mypy", "import rules"]
    assert names("README.md") == []
    assert [step.name for step in quick.steps(tree, [], paths("tests/unit/protect"))] == ["pytest"]


def test_output_and_exit_code_of_each_step_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    fails = quick.Step("fails", (sys.executable, "-c", "print('on stdout'); exit('on stderr')"))
    succeeds = quick.Step("succeeds", (sys.executable, "-c", "print(1 + 1); print('last line')"))
    assert {step.name: status for step, status in quick.run_steps([fails, succeeds])} == {
        "fails": 1,
        "succeeds": 0,
    }
    shown = capfd.readouterr().out
    assert "quick: fails: " in shown and "on stdout\n" in shown and "on stderr\n" in shown
    assert "last line\n" in shown and "2\n" not in shown


@pytest.mark.parametrize(("status", "told"), [(0, "nothing failed"), (1, "failed: probe")])
def test_a_failed_step_fails_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, status: int, told: str
) -> None:
    probe = quick.Step("probe", (sys.executable, "-c", f"exit({status})"))
    monkeypatch.setattr(quick, "steps", lambda *_: [probe])
    assert quick.main(["protect/zones"]) == status
    assert capsys.readouterr().out.endswith(f"quick: {told}\n")


def test_nothing_changed_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "changed", lambda _: [])
    assert quick.main([]) == 0
    assert "nothing has changed" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["no/such/folder", "..", ".", "README.md"])
def test_only_a_folder_below_the_root_is_accepted(folder: str) -> None:
    assert quick.main([folder]) == 2
