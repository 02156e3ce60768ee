"""tests/xen/inside runs in dom0; all other tests of the folder run outside, and boot a dom0."""

from __future__ import annotations

import pytest

from tests.xen.machine import is_dom0
from tests.xen.suites import Suite

collect_ignore = ["test_nested.py"] if is_dom0() else ["inside"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out suites outside the chosen tier."""
    tier = config.getoption("--xen")
    left_out = [item for item in items if (suite := _suite(item)) and tier not in suite.tiers]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _suite(item: pytest.Item) -> Suite | None:
    suite = (
        item.callspec.params.get("suite")
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else None
    )
    return suite if isinstance(suite, Suite) else None
