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
    """About what it takes on an idle machine; after several times that it is ended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    tiers: frozenset[str] = _FULL
    """``--xen`` settings with which it runs: ``make test`` is quick, ``make test-xen`` full."""

    @property
    def deadline(self) -> float:
        """Seconds after which it has failed."""
        return 120 + 5 * self.seconds


SUITES = (
    Suite("binding", ("tests/xen/inside/test_binding.py",), 160, tiers=_EVERY),
    Suite("toolstack", ("tests/xen/inside/test_toolstack.py",), 210),
    Suite("contract-pv", _CONTRACT, 280),
    Suite("contract-pvh", (*_CONTRACT, "-k", _PVH), 200, {"XENPOD_TEST_MODE": "pvh"}),
    Suite("volumes", ("tests/contract/test_toolstack_shared.py", "--toolstack=libxl"), 150),
    # dom0 has cgroup v2 alone, as hosts with systemd have: where other tiers ran may be v1 or both.
    Suite("fake-on-v2", (*_FAKE, "-k", "not many_at_once"), 150),
    Suite("agent", ("tests/xen/inside/test_agent.py",), 100),
    Suite("conformance", ("tests/conformance", "--toolstack=libxl"), 900),
    Suite("story", ("tests/xen/inside/test_story.py",), 400, tiers=_EVERY),
)
