"""Checks and unit tests of a change: ``python -m tools.quick [FOLDER]``.

Without a folder it checks the files that differ from the commit that is checked out, or from the commit where
the branch left main, and new files.  It needs neither root, nor a C compiler, nor Debian packages.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
UNIT = PurePosixPath("tests/unit")
_MAIN = ("main", "origin/main")
_NOTHING_COLLECTED = 5
"""pytest's exit code if each test of a folder needs root."""


@dataclass(frozen=True, slots=True)
class Step:
    """A program, and its exit codes for success."""

    name: str
    command: tuple[str, ...]
    good: frozenset[int] = frozenset({0})


def main(arguments: Sequence[str]) -> int:
    """0 if every step succeeded, 1 if one failed, 2 if there is no such folder below the root."""
    folder = (ROOT / arguments[0]).resolve() if arguments else None
    if folder and not (folder.is_dir() and ROOT in folder.parents):
        _say(f"{folder} is no folder below {ROOT}")
        return 2
    paths = [PurePosixPath(folder.relative_to(ROOT))] if folder else changed(ROOT)
    if not paths:
        _say("nothing has changed, so nothing was checked")
        return 0
    _say("checked: " + " ".join(map(str, paths)))
    tests, without = unit_tests(ROOT, paths)
    for package in without:
        _say(f"{package} has no unit tests")
    failed = [step.name for step, status in run_steps(steps(ROOT, paths, tests)) if status not in step.good]
    _say(f"failed: {', '.join(failed)}" if failed else "nothing failed")
    return 1 if failed else 0


def changed(root: Path) -> list[PurePosixPath]:
    """Files that were changed, added or removed, in the order of their names."""
    bases = [base for main in _MAIN for base in _git(root, "merge-base", "HEAD", main)]
    found = {*_git(root, "ls-files", "-z", "--others", "--exclude-standard")}
    for commit in ("HEAD", *bases[:1]):
        found |= {*_git(root, "diff", "-z", "--name-only", "--no-renames", commit)}
    return [PurePosixPath(name) for name in sorted(found)]


def _git(root: Path, *arguments: str) -> list[str]:
    """Lines or names that git prints; none if it fails, as for a branch that does not exist."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.replace("\0", "\n").splitlines() if done.returncode == 0 else []


def unit_tests(root: Path, paths: Iterable[PurePosixPath]) -> tuple[list[PurePosixPath], list[PurePosixPath]]:
    """Tests to run, none inside another; and the packages that have no unit tests.

    A file of a package has the tests of the folder that mirrors its own, or else of the nearest folder above.
    A changed test is run itself; for another file in tests/unit, its folder is run.
    """
    found: set[PurePosixPath] = set()
    without: set[PurePosixPath] = set()
    for path in paths:
        if path.is_relative_to(UNIT):
            found.add(path if _is_test(root / path) else _existing(root, path))
        elif (root / path.parts[0] / "__init__.py").exists() and path.parts[0] != "tests":
            mirror = _existing(root, UNIT / path)
            if mirror == UNIT:
                without.add(PurePosixPath(path.parts[0]))
            else:
                found.add(mirror)
    return [path for path in sorted(found) if not found & {*path.parents}], sorted(without)


def _is_test(path: Path) -> bool:
    return path.is_file() and path.name.startswith("test_")


def _existing(root: Path, path: PurePosixPath) -> PurePosixPath:
    """The nearest existing folder: the path itself, or a parent."""
    return next(folder for folder in (path, *path.parents) if (root / folder).is_dir())


def steps(root: Path, paths: Sequence[PurePosixPath], tests: Sequence[PurePosixPath]) -> list[Step]:
    """mypy and the import rules see the whole tree, because a change can break its callers."""
    found = []
    if ruff := [str(path) for path in paths if (root / path).is_dir() or _is_python(root / path)]:
        found += [
            Step("ruff check", _command("ruff", "check", "--quiet", "--force-exclude", *ruff)),
            Step("ruff format", _command("ruff", "format", "--check", "--quiet", "--force-exclude", *ruff)),
        ]
    if ruff or any(path.suffix == ".py" for path in paths):
        found += [Step("mypy", _command("mypy")), Step("import rules", _command("lint-imports", "--no-logo"))]
    if tests:
        options = ("-q", "-n", "2", "--dist", "loadfile", "-m", "not root")
        command = _command("pytest", *options, *map(str, tests))
        found.append(Step("pytest", command, frozenset({0, _NOTHING_COLLECTED})))
    return found


def _is_python(path: Path) -> bool:
    return path.suffix == ".py" and path.exists()


def _command(program: str, *arguments: str) -> tuple[str, ...]:
    return (str(Path(sys.executable).with_name(program)), *arguments)


def run_steps(steps: Sequence[Step]) -> Iterator[tuple[Step, int]]:
    """Run all steps at once, and yield each with its exit code when it ends.

    Of a step that succeeded only the last line is shown.
    """
    with ThreadPoolExecutor(max(1, len(steps))) as pool:
        running = {pool.submit(_output, step): step for step in steps}
        for done in as_completed(running):
            step, (status, output) = running[done], done.result()
            _say(f"{step.name}: {' '.join(step.command)}")
            shown = output.splitlines(keepends=True)
            sys.stdout.writelines(shown[-1:] if status in step.good else shown)
            yield step, status


def _output(step: Step) -> tuple[int, str]:
    done = subprocess.run(
        step.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def _say(text: str) -> None:
    sys.stdout.write(f"quick: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
