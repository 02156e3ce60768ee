"""Prints the results of the last runs as the tables of docs/conformance.md.

python -m tests.support.e2e.table
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.e2e.ginkgo import Spec, specs
from tests.support.e2e.known import KNOWN
from tests.support.e2e.rig import CACHE, RuntimeName

Results = Mapping[RuntimeName, Mapping[str, Sequence[Spec]]]
"""The specs of each run, by runtime and group."""

_TAG = re.compile(r" \[[^]]*\]")
"""Marks in a spec's name, ``[Conformance]`` for example; the group is at the beginning."""


def table(results: Results) -> Iterator[str]:
    """One line for each group: the specs that ran, and the passed and failed of each runtime."""
    runtimes = list(results)
    yield f"| group | {' | '.join(f'{one}: run | passed | failed' for one in runtimes)} |"
    yield "|---" * (1 + 3 * len(runtimes)) + "|"
    for group in sorted({group for groups in results.values() for group in groups}):
        cells = [_counts(results[one].get(group, ())) for one in runtimes]
        yield f"| {group} | {' | '.join(cells)} |"


def failures(results: Results) -> Iterator[str]:
    """One line for each failing spec: the runtimes with which the spec fails, and the reason."""
    yield "| spec | fails with | reason |"
    yield "|---|---|---|"
    failed: dict[str, list[RuntimeName]] = {}
    for runtime, groups in results.items():
        for found in groups.values():
            for spec in found:
                if not spec.passed:
                    failed.setdefault(spec.name, []).append(runtime)
    for name in sorted(failed):
        runtimes = failed[name]
        reasons = {_reason(one, name) for one in runtimes}
        yield f"| {_TAG.sub('', name)} | {', '.join(runtimes)} | {'; '.join(sorted(reasons))} |"


def read(folder: Path) -> Results:
    """The reports below ``folder``, whose path is ``<runtime>/<group>/report.json``."""
    return {
        runtime: {path.parent.name: specs(path) for path in sorted((folder / runtime).glob("*/report.json"))}
        for runtime in RuntimeName
        if (folder / runtime).exists()
    }


def _counts(found: Sequence[Spec]) -> str:
    if not found:
        return "– | – | –"
    passed = sum(one.passed for one in found)
    return f"{len(found)} | {passed} | {len(found) - passed}"


def _reason(runtime: RuntimeName, name: str) -> str:
    return next((one.reason for one in KNOWN[runtime] if one.name in name), "unknown")


if __name__ == "__main__":
    last = read(CACHE / "reports")
    sys.stdout.write("\n".join([*table(last), "", *failures(last), ""]))
