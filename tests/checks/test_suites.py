"""Suites of nested Xen: each test is in a suite, and the quick suites are quick."""

from __future__ import annotations

from pathlib import Path

from tests.xen.suites import SUITES, Suite
from tests.xen.test_nested import shared_out

ROOT = Path(__file__).resolve().parents[2]
QUICK = 6 * 60.0
"""Seconds for the quick suites, which a change waits for in CI."""


def chosen(suite: Suite) -> str:
    """The expression of ``-k``."""
    arguments = [*suite.arguments, "", ""]
    return arguments[arguments.index("-k") + 1] if "-k" in arguments else ""


def test_tests_left_out_of_a_suite_are_in_another_suite() -> None:
    """For each file and environment: everything in one suite, or two halves."""
    left_out = {"contract-pvh", "fake-on-v2", "sizes-pvh"}  # other runs of tests with an environment
    halves: dict[tuple[str, ...], set[str]] = {}
    for suite in SUITES:
        if suite.name not in left_out:
            files = tuple(one for one in suite.arguments if one.startswith("tests/"))
            halves.setdefault(files, set()).add(chosen(suite))
    for files, words in halves.items():
        first = min(words, key=len)
        assert words in ({""}, {first, f"not ({first})"}, {first, f"not {first}"}), files


def test_every_file_in_dom0_is_in_a_suite() -> None:
    named = {one for suite in SUITES for one in suite.arguments}
    inside = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/xen/inside").rglob("test_*.py")}
    assert inside <= named
    assert all((ROOT / one).exists() for one in named if one.startswith("tests/"))


def test_the_quick_ones_are_quick() -> None:
    shares = shared_out([suite for suite in SUITES if "quick" in suite.tiers])
    assert max(sum(suite.seconds for suite in share) for share in shares) <= QUICK
    assert all("full" in suite.tiers for suite in SUITES)


def test_each_suite_has_a_name_of_its_own() -> None:
    assert len({suite.name for suite in SUITES}) == len(SUITES)
