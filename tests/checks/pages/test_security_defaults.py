"""The defaults in docs/security.md are the defaults of the code."""

from __future__ import annotations

from pathlib import Path

from cri.config import CriConfig, HandlerConfig

PAGE = (Path(__file__).resolve().parents[3] / "docs/security.md").read_text()


def test_the_page_has_the_default_annotations() -> None:
    allowed = HandlerConfig().annotations
    (line,) = [line for line in PAGE.splitlines() if line.startswith("- Leave `annotations` of handlers")]
    assert tuple(word for word in line.split("`") if word.startswith("xenpod.dev/")) == allowed


def test_by_default_a_pod_may_choose_no_kernel() -> None:
    assert CriConfig().kernels.allow == ()
    assert "while `kernels.allow` is empty, which is its default" in PAGE


def test_by_default_only_pods_of_the_clusters_own_namespace_start_in_a_delegate() -> None:
    assert CriConfig().delegate.namespaces == ("kube-system",)
