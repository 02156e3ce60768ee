"""Set-up of all tests: skips, time limits, hypothesis profiles.

Tests that need root or a Xen dom0 are skipped elsewhere, with the reason.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.session import checkpoints, skips, timeouts

# A stalling machine is no fault of the tested code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run: a failure repeats, and a failure after a change is due to the change.
settings.register_profile("ci", settings.get_profile("patient"), derandomize=True, print_blob=True)
settings.load_profile("ci" if skips.in_ci() else "patient")

_CAPABILITIES = Path("/proc/xen/capabilities")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--toolstack",
        choices=("fake", "libxl"),
        default="fake",
        help="what tests/contract/test_toolstack.py and tests/conformance run on",
    )
    parser.addoption(
        "--xen",
        choices=("quick", "full"),
        default="full",
        help="how much of tests/xen/suites.py runs in nested Xen",
    )
    checkpoints.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    checkpoints.configure(config)
    for plugin in (skips, timeouts):
        config.pluginmanager.register(plugin)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Like tmp_path, for a node's folder: unix sockets in it need names of less than 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="xenpod-") as folder:
        yield Path(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    can = {"root": os.geteuid() == 0, "xen": _in_dom0()}
    why = {"root": "needs root", "xen": "runs in a Xen dom0 (make test-xen boots one)"}
    for item in items:
        for marker, here in can.items():
            if not here and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=why[marker]))


def _in_dom0() -> bool:
    return _CAPABILITIES.exists() and "control_d" in _CAPABILITIES.read_text()
