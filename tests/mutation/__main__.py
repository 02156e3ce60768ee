"""Mutation testing: ``python -m tests.mutation --seed N [--sample 60] [--paths protect daemonkit]``.

The program applies a seeded random sample of small changes to copies of the product, one change at a time.  A
first run with probes finds the tests that execute the place of each change.  These tests run on each mutant
until a test fails: the unit tests, then mypy, then (as root, with ``--root``) the tiers with real daemons.
The program prints unnoticed mutants with their diffs.  A person has to judge, because some mutants change no
behaviour.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.mutants import Mutant, mutants
from tests.mutation.probes import hits
from tests.mutation.scratch import ROOT, TOO_LONG, Scratch

PATHS = ("cri", "images", "protect", "daemonkit")
UNIT = ("tests/unit",)
ROOTED = ("tests/contract", "tests/zone", "tests/integration", "tests/hostile", "tests/conformance")
_MOST_IDS = 200
"""Beyond this number tests are named by their files."""
_MOST_ROOT = 24
"""Tests with daemons take seconds each: a sample of this size, spread over the files, stands for all."""
_LIMIT = 300.0
"""Seconds for the tests of a mutant in one tier."""
_TEST_LIMIT = 60


@dataclass(slots=True)
class Result:
    """Result for a mutant; ``noticed`` names the tier."""

    mutant: Mutant
    diff: str
    noticed: str = ""
    cut_short: bool = False
    """The tests took too long, and no test had failed."""
    reached: set[str] = field(default_factory=set)


def main() -> int:
    arguments = _parse()
    sample = draw(arguments.seed, arguments.sample, [Path(path) for path in arguments.paths])
    results = {
        number: Result(mutant, mutant.diff((ROOT / mutant.path).read_bytes()))
        for number, mutant in enumerate(sample)
    }
    if arguments.only:
        results = {number: results[number] for number in arguments.only}
    with tempfile.TemporaryDirectory(prefix="xenpod-mutation-", dir=arguments.folder) as folder:
        workplace = Workplace(Path(folder), arguments.jobs)
        workplace.tier("unit", results, UNIT)
        workplace.types(results)
        if arguments.root is not None:
            workplace.tier("root", results, arguments.root or ROOTED)
    _report(results, arguments)
    return 0


def draw(seed: int, size: int, paths: Iterable[Path]) -> list[Mutant]:
    """A random sample; the same tree and seed give the same.  At most one change of each place."""
    files = sorted(
        file.relative_to(ROOT)
        for path in paths
        for file in ((ROOT / path).rglob("*.py") if (ROOT / path).is_dir() else [ROOT / path])
    )
    every = [mutant for file in files for mutant in mutants(file, (ROOT / file).read_bytes())]
    chosen: dict[tuple[Path, int, str], Mutant] = {}
    for mutant in random.Random(seed).sample(every, len(every)):
        chosen.setdefault((mutant.path, mutant.line, mutant.kind), mutant)
    return list(chosen.values())[:size]


class Workplace:
    """Copies of the tree, one for each job."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self._folder, self._jobs = folder, jobs
        self._free: SimpleQueue[Scratch] = SimpleQueue()
        for number in range(jobs):
            self._free.put(Scratch.copy(folder / f"copy{number}"))

    def tier(self, name: str, results: Mapping[int, Result], tests: Sequence[str]) -> None:
        """Try the mutants that no earlier tier has noticed."""
        left = {number: one for number, one in results.items() if not one.noticed}
        _progress(f"{name}: which tests reach {len(left)} mutants")
        instrumented = Scratch.copy(self._folder / name)
        places = {number: result.mutant for number, result in left.items()}
        said, failing = instrumented.probe(places, tests, self._jobs)
        if failing:
            _progress(f"these fail without a mutant, and are left out: {' '.join(sorted(failing))}")
        found = {number: reaching - failing for number, reaching in hits(said).items()}
        self._each(
            left, lambda scratch, number: _try(name, scratch, left[number], found.get(number, set()), tests)
        )

    def types(self, results: Mapping[int, Result]) -> None:
        left = {number: one for number, one in results.items() if not one.noticed}
        scratch = self._free.get()
        status, said = scratch.run([sys.executable, "-m", "mypy"], None)
        self._free.put(scratch)
        if status:
            _progress(f"mypy is left out, as it fails without a mutant: {said[-500:]}")
            return
        _progress(f"mypy: {len(left)} mutants")
        self._each(left, lambda scratch, number: _types(scratch, left[number]))

    def _each(self, left: Mapping[int, Result], work: Callable[[Scratch, int], None]) -> None:
        lock, done = threading.Lock(), 0

        def one(number: int) -> None:
            nonlocal done
            scratch = self._free.get()
            try:
                with scratch.mutated(left[number].mutant):
                    work(scratch, number)
            finally:
                self._free.put(scratch)
            with lock:
                done += 1
                mutant = left[number].mutant
                what = left[number].noticed or "not noticed"
                _progress(f"{done}/{len(left)} #{number} {mutant.path}:{mutant.line} {mutant.kind}: {what}")

        with ThreadPoolExecutor(self._jobs) as pool:
            list(pool.map(one, left))


def _try(tier: str, scratch: Scratch, result: Result, reaching: set[str], every: Sequence[str]) -> None:
    result.reached |= reaching
    if not reaching:
        return
    tests: Sequence[str] = sorted(reaching)
    if "" in reaching:
        tests = every
    elif tier == "root":
        tests = spread(reaching, _MOST_ROOT)
    elif len(reaching) > _MOST_IDS:
        tests = sorted({test.partition("::")[0] for test in reaching})
    status, _ = scratch.pytest(("-x", f"--timeout={_TEST_LIMIT}", *tests), _LIMIT)
    if status == TOO_LONG:
        result.cut_short = True
    elif status:
        result.noticed = tier


def spread(tests: Iterable[str], most: int) -> list[str]:
    """Choose at most the given number of tests, from as many files as possible."""
    files: dict[str, list[str]] = {}
    for test in sorted(tests):
        files.setdefault(test.partition("::")[0], []).append(test)
    turns = zip_longest(*files.values())
    return [test for turn in turns for test in turn if test is not None][:most]


def _types(scratch: Scratch, result: Result) -> None:
    if scratch.run([sys.executable, "-m", "mypy"], _LIMIT)[0] not in (0, TOO_LONG):
        result.noticed = "mypy"


def _progress(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _report(results: Mapping[int, Result], arguments: argparse.Namespace) -> None:
    lines = []
    for number, result in results.items():
        mutant = result.mutant
        if not result.noticed:
            reached = f"reached by {len(result.reached)} tests" if result.reached else "reached by no test"
            cut = ", not all of them ran" if result.cut_short else ""
            lines += [f"\n#{number} {mutant.path}:{mutant.line} {mutant.kind}, {reached}{cut}"]
            lines += [result.diff]
        elif arguments.verbose:
            lines += [f"\n#{number} {mutant.path}:{mutant.line} {mutant.kind}, noticed by {result.noticed}"]
            lines += [result.diff]
    tiers = {tier: sum(one.noticed == tier for one in results.values()) for tier in ("unit", "mypy", "root")}
    noticed = sum(tiers.values())
    parts = ", ".join(f"{tier} {count}" for tier, count in tiers.items())
    lines += [f"\nseed {arguments.seed}: {noticed} of {len(results)} noticed ({parts})"]
    lines += [f"{len(results) - noticed} not noticed: those that change no behaviour do not count"]
    sys.stdout.write("\n".join(lines) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--paths", nargs="+", default=PATHS, help="files or folders (default: all three)")
    parser.add_argument("--only", type=int, nargs="+", help="those numbers of the sample")
    parser.add_argument(
        "--root", nargs="*", help="survivors against tests that need root, too (default: all such tiers)"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", help="where the copies go (default: the system's)")
    parser.add_argument("--verbose", action="store_true", help="the noticed ones, too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
