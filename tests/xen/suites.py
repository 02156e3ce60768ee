"""What runs in dom0, and about how long that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_CONTRACT = ("tests/contract/test_toolstack.py", "--toolstack=libxl")
_FAKE = ("tests/contract/test_toolstack.py", "tests/contract/test_toolstack_fake.py", "--toolstack=fake")
_EVERY, _FULL = frozenset({"quick", "full"}), frozenset({"full"})
_PVH = "paused or crash or seen or spliced"
"""What the mode can make a difference for."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One run of pytest."""

    name: str
    arguments: tuple[str, ...]
    seconds: float
    """About what it takes while another such machine runs beside; after several times that it is ended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    tiers: frozenset[str] = _FULL
    """``--xen`` settings with which it runs: ``make test`` is quick, ``make test-xen`` full."""

    @property
    def deadline(self) -> float:
        """Seconds after which it has failed."""
        return 120 + 5 * self.seconds


SUITES = (
    Suite("binding", ("tests/xen/inside/test_binding.py",), 210, tiers=_EVERY),
    Suite("toolstack", ("tests/xen/inside/test_toolstack.py",), 150),
    Suite("contract-pv", _CONTRACT, 450, tiers=_EVERY),
    Suite("contract-pvh", (*_CONTRACT, "-k", _PVH), 250, {"XENPOD_TEST_MODE": "pvh"}),
    Suite("volumes", ("tests/contract/test_toolstack_shared.py", "--toolstack=libxl"), 300),
    # dom0 has cgroup v2 alone, as hosts with systemd have: where other tiers ran may be v1 or both.
    Suite("fake-on-v2", (*_FAKE, "-k", "not many_at_once"), 250),
    Suite("agent", ("tests/xen/inside/test_agent.py",), 150, tiers=_EVERY),
    Suite("kernel", ("tests/xen/inside/test_kernel.py",), 240),
    Suite("conformance", ("tests/conformance", "--toolstack=libxl"), 1500),
    Suite("story", ("tests/xen/inside/test_story.py",), 580, tiers=_EVERY),
)
