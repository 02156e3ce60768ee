"""Results of the e2e tier: ginkgo's report, and the verdict with known failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.e2e.ginkgo import Spec, specs
from tests.support.e2e.rig import RuntimeName
from tests.support.e2e.table import failures, table
from tests.support.e2e.verdict import Known, verdict
from tools.localnode.processes import ProgramFailed

KNOWN = [Known("uses the host's network", "a zone has no host network")]


def row(text: str, state: str, kind: str = "It", message: str = "") -> dict[str, Any]:
    failure = {"Failure": {"Message": message}} if message else {}
    hierarchy = {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeText": text}
    return {"LeafNodeType": kind, "State": state, "RunTime": 2_500_000_000, **hierarchy, **failure}


def read(tmp_path: Path, *rows: dict[str, Any]) -> list[Spec]:
    report = tmp_path / "report.json"
    report.write_text(json.dumps([{"SpecReports": list(rows)}]))
    return specs(report)


def test_report_without_skipped_specs_is_read(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        row("starts", "passed"),
        row("stops", "failed", message="timed out"),
        row("hangs", "timedout", message="spec timeout"),
        row("is for another system", "skipped"),
        row("", "passed", "SynchronizedBeforeSuite"),
    )
    assert found == [
        Spec("[sig-node] Pods starts", True, "", 2.5),
        Spec("[sig-node] Pods stops", False, "timed out", 2.5),
        Spec("[sig-node] Pods hangs", False, "spec timeout", 2.5),
    ]


def test_failed_setup_of_the_suite_raises(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed, match="no node is ready"):
        read(tmp_path, row("", "failed", "SynchronizedBeforeSuite", "no node is ready"))


def test_unexpected_failure_is_named_with_its_message() -> None:
    found = [Spec("starts", True), Spec("stops", False, "timed\n out")]
    assert verdict(found, KNOWN) == ["FAILED stops: timed out"]


def test_known_failure_is_accepted() -> None:
    assert verdict([Spec("a pod uses the host's network", False, "refused")], KNOWN) == []


def test_passed_spec_of_the_known_failures_is_reported() -> None:
    (complaint,) = verdict([Spec("a pod uses the host's network", True)], KNOWN)
    assert complaint.startswith("PASSED a pod uses the host's network") and KNOWN[0].reason in complaint


def test_run_without_specs_is_no_success() -> None:
    assert verdict([], KNOWN) == ["no spec ran"]


def test_tables_have_both_runtimes_side_by_side() -> None:
    results = {
        RuntimeName.XENPOD: {"sig-node": [Spec("starts", True), Spec("[sig-node] stops [Slow]", False)]},
        RuntimeName.CONTAINERD: {
            "sig-node": [Spec("starts", True), Spec("[sig-node] stops [Slow]", False)],
            "sig-cli": [Spec("x", True)],
        },
    }
    assert list(table(results))[2:] == [
        "| sig-cli | – | – | – | 1 | 1 | 0 |",
        "| sig-node | 2 | 1 | 1 | 2 | 1 | 1 |",
    ]
    assert list(failures(results))[2:] == ["| [sig-node] stops | xenpod, containerd | unknown |"]
