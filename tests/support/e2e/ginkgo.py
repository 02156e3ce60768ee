"""Runs the specs of Kubernetes' e2e suite with ginkgo, and reads ginkgo's report."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.cluster.api import Api
from tests.support.cluster.programs import VARIABLE, program
from tests.support.e2e.rig import SuiteNode
from tools.localnode.processes import Output, ProgramFailed, background

_NOT_RUN = ("skipped", "pending")
_MESSAGE = 1000
"""Characters of a failure's message that are kept."""


@dataclass(frozen=True)
class Spec:
    """The result of one spec."""

    name: str
    passed: bool
    message: str = ""
    """The first message of a failure."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Suite:
    """A program with specs."""

    program: str
    """The name of the file."""
    flags: Sequence[str]
    launcher: Sequence[str] = ()
    """Begins the command line: a program that becomes ginkgo."""


def cluster_suite(kubeconfig: Path) -> Suite:
    """The specs for a whole cluster."""
    flags = (
        *(f"-kubeconfig={kubeconfig}", "-provider=local", "-node-os-distro=debian"),
        *("-minStartupPods=0", "-system-pods-startup-timeout=1m", "-allowed-not-ready-nodes=0"),
        *("-disable-log-dump", "-dump-logs-on-failure=false"),
    )
    return Suite("e2e.test", flags)


def node_suite(api: Api, node: SuiteNode) -> Suite:
    """The specs for one node.

    The cluster has no other node.  The kubelet listens on its default ports of loopback.
    """
    flags = (
        *("--start-services=false", f"--host={api.url}", f"--bearer-token={api.token}"),
        *(f"--node-name={node.name}", f"--container-runtime-endpoint=unix://{node.socket}"),
        *("--prepull-images=false", "--dns-domain=cluster.local"),
    )
    return Suite("e2e_node.test", flags, node.network.launcher)


async def run_specs(folder: Path, suite: Suite, focus: str, *, at_once: int, skip: str = "") -> list[Spec]:
    """Run the specs whose names match ``focus`` and not ``skip``, ``at_once`` of them at a time.

    ``folder`` gets the log and the report.  ProgramFailed: the suite did not run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()  # the folder is where ginkgo runs
    report, output = folder / "report.json", Output(folder / "ginkgo.log")
    report.unlink(missing_ok=True)
    command = (
        *suite.launcher,
        program("ginkgo"),
        *(f"-nodes={at_once}", "--no-color", "--timeout=6h", "--poll-progress-after=0"),
        *(f"--focus={focus}", *([f"--skip={skip}"] if skip else [])),
        *(f"--json-report={report.name}", f"--output-dir={folder}"),
        *(program(suite.program), "--"),
        *(*suite.flags, f"-report-dir={folder}"),
    )
    # The suite calls kubectl.
    path = os.pathsep.join([os.environ[VARIABLE], os.environ["PATH"]])
    async with background(*command, output=output, environment={"PATH": path}, folder=folder) as process:
        try:
            await process.wait()
        finally:
            # The processes of the specs do not end with ginkgo.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if not report.exists():
        raise ProgramFailed(f"ginkgo ended with {process.returncode} without a report:\n{output.tail()}")
    return specs(report)


def specs(report: Path) -> list[Spec]:
    """Read the specs that ran from ginkgo's JSON report.  ProgramFailed: the suite's own set-up failed."""
    return list(_read(json.loads(report.read_text())))


def _read(suites: Sequence[dict[str, object]]) -> Iterator[Spec]:
    for suite in suites:
        found = suite["SpecReports"]
        assert isinstance(found, list)
        for one in found:
            message = (one.get("Failure") or {}).get("Message", "")[:_MESSAGE]
            if one["LeafNodeType"] == "It":
                if one["State"] not in _NOT_RUN:
                    name = " ".join([*(one.get("ContainerHierarchyTexts") or []), one["LeafNodeText"]])
                    yield Spec(name, one["State"] == "passed", message, one["RunTime"] / 1e9)
            elif one["State"] not in ("passed", *_NOT_RUN):
                raise ProgramFailed(f"{one['LeafNodeType']} of the suite failed: {message}")
