"""Runs specs on a cluster, and compares the results with the known failures of the cluster's runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.e2e.ginkgo import Spec, Suite, run_specs
from tests.support.e2e.known import KNOWN
from tests.support.e2e.rig import Rig
from tests.support.e2e.verdict import verdict


@dataclass(frozen=True)
class Judged:
    """The specs that ran, and the complaints of ``verdict``."""

    specs: list[Spec]
    complaints: list[str]


async def judged_specs(
    cluster: Rig, folder: Path, suite: Suite, focus: str, *, at_once: int, skip: str = ""
) -> Judged:
    """See ``run_specs``.  ProgramFailed also if a kubelet has ended."""
    found = await run_specs(folder, suite, focus, at_once=at_once, skip=skip)
    cluster.check()
    return Judged(found, verdict(found, KNOWN[cluster.runtime]))
