"""Copies of the tree for trying mutants."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutants import Mutant
from tests.mutation.probes import FILE, instrument

ROOT = Path(__file__).resolve().parents[2]
_NOT_COPIED = (".venv", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis")
_FAILED, _NO_TESTS = 1, 5
"""Exit codes of pytest: failed tests, no tests."""
TOO_LONG = -1000
INSTRUMENTED_CHECKS = "tests/checks/test_checks.py"
"""Tests of the source text itself, which a probe changes."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """One copy; one run at a time."""

    folder: Path

    @classmethod
    def copy(cls, folder: Path) -> Scratch:
        shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        return cls(folder)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        file = self.folder / mutant.path
        source = file.read_bytes()
        file.write_bytes(mutant.apply(source))
        # Bytecode is valid for a size and a second: not exact enough for us.
        for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            stale.unlink()
        try:
            yield
        finally:
            file.write_bytes(source)

    def probe(
        self, mutants: Mapping[int, Mutant], tests: Sequence[str], jobs: int
    ) -> tuple[Path, frozenset[str]]:
        """Run tests where each mutant's place says that it runs: the file of what was said.

        Also those that failed: their failing says nothing of a mutant.  RuntimeError when none ran.
        """
        said = self.folder / "probes"
        said.touch()
        for path in {mutant.path for mutant in mutants.values()}:
            here = {number: mutant for number, mutant in mutants.items() if mutant.path == path}
            file = self.folder / path
            file.write_text(instrument(file.read_bytes(), here))
        options = ("-rfE", "-n", str(jobs), "--dist", "loadfile", f"--deselect={INSTRUMENTED_CHECKS}")
        status, text = self.pytest((*tests, *options), None, {FILE: str(said)})
        if status not in (0, _FAILED, _NO_TESTS):
            raise RuntimeError(f"the tests did not run:\n{text[-3000:]}")
        return said, frozenset(re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE))

    def pytest(
        self, arguments: Sequence[str], timeout: float | None, more: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Exit code and output; ``TOO_LONG`` after the deadline."""
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", *arguments]
        return self.run(command, timeout, more)

    def run(
        self, command: Sequence[str], timeout: float | None, more: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        environment = {
            **os.environ,
            "CI": "true",
            "PYTHONPATH": f"{self.folder}:{self.folder / 'proto'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            **(more or {}),
        }
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()  # its watchdog ends the daemons
            output, _ = process.communicate()
            return TOO_LONG, output.decode(errors="replace")
        return process.returncode, output.decode(errors="replace")
