"""A plugin of pytest: with ``CI`` set, a skipped test has failed, except for the reasons listed here."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

MISSING = (
    *(f"{program} is not on PATH" for program in ("crictl", "critest", "kubelet", "helm")),
    "XENPOD_KUBERNETES names no folder with Kubernetes' programs",
    "XENPOD_KUBERNETES names no folder with Kubernetes' e2e suite",
)
"""Programs outside of Debian: their tests run where the programs are."""

ALLOWED = (
    *MISSING,
    # One run of the tests is inside dom0, the other outside of dom0.
    r"runs in a Xen dom0 \(make test-xen boots one\)",
    # An empty cell of a table.
    r"the sanitizers' own memory is not the agent's",
    # Only a special kernel could show this.
    r"the fake's zones share the host's kernel",
    # Options of the machine's own kernel.
    r"this kernel measures no pressure",
    # By hand, with the checkout of another release.
    r"XENPOD_BEFORE names no other checkout",
)
"""Regular expressions of whole reasons."""


def in_ci(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this run must skip nothing."""
    return environment.get("CI", "").lower() in ("1", "true", "yes")


def pytest_configure(config: pytest.Config) -> None:
    if in_ci():
        config.pluginmanager.register(Strict(), "xenpod-skips")


class Strict:
    """Turns skips into failures."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: pytest.TestReport = yield  # type: ignore[assignment]  # pluggy's type
        if not hasattr(report, "wasxfail"):
            _judge(report)
        return report  # type: ignore[return-value]

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        """A whole file."""
        report: pytest.CollectReport = yield  # type: ignore[assignment]
        _judge(report)
        return report  # type: ignore[return-value]


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not allowed(reason := _reason(report)):
        report.outcome = "failed"
        report.longrepr = f"skipped, and {__name__} does not list the reason: {reason}"


def allowed(reason: str) -> bool:
    return any(re.fullmatch(one, reason) for one in ALLOWED)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names the programs whose tests did not run."""
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    for reason in MISSING:
        if count := reasons[reason]:
            terminalreporter.write_line(f"MISSING: {reason}, {count} tests of it did not run")
