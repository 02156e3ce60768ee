"""What runs in dom0, and for how long at most: several times what it takes when nothing else runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_CONTRACT = ("tests/contract/test_toolstack.py", "--toolstack=libxl")
_PVH = "paused or crash or seen or spliced"
"""What the mode can make a difference for."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One run of pytest."""

    name: str
    arguments: tuple[str, ...]
    deadline: float
    environment: Mapping[str, str] = field(default_factory=dict)
    tiers: frozenset[str] = frozenset({"full"})
    """``--xen`` settings with which it runs: ``make test`` is quick, ``make test-xen`` full."""


SUITES = (
    Suite("binding", ("tests/xen/inside/test_binding.py",), 1500, tiers=frozenset({"quick", "full"})),
    Suite("toolstack", ("tests/xen/inside/test_toolstack.py",), 900),
    Suite("contract-pv", _CONTRACT, 1500),
    Suite("contract-pvh", (*_CONTRACT, "-k", _PVH), 900, {"XENPOD_TEST_MODE": "pvh"}),
    Suite("volumes", ("tests/contract/test_toolstack_shared.py", "--toolstack=libxl"), 1500),
    Suite("agent", ("tests/xen/inside/test_agent.py",), 900),
    Suite("story", ("tests/xen/inside/test_story.py",), 1500),
    Suite("conformance", ("tests/conformance", "--toolstack=libxl"), 3600),
)
