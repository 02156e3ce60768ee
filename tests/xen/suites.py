"""What runs in dom0, and about how long that takes.

``make test`` is to take at most 20 minutes, so each of the long suites is two: what every change has to pass,
and the rest, for ``make test-xen``.  One has the tests that its ``-k`` selects, the other those that it does
not: together they are all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_CONTRACT = ("tests/contract/test_toolstack.py", "--toolstack=libxl")
_STORY = ("tests/xen/inside/test_story.py",)
_AGENT = ("tests/xen/inside/test_agent.py",)
_KILLED = ("tests/xen/inside/test_killed.py",)
_FAKE = ("tests/contract/test_toolstack.py", "tests/contract/test_toolstack_fake.py", "--toolstack=fake")
_EVERY, _FULL = frozenset({"quick", "full"}), frozenset({"full"})
_PVH = "paused or crash or seen or spliced"
"""What the mode can make a difference for."""
_CONTRACT_FIRST = (
    "mark or paused or frees_everything or own_will or by_a_crash or comes_and_goes or beside "
    "or spliced_interface or connection_replaces or after_a_restart or nobody_watched"
)
"""A domain's life, its end, a disk, an interface, its channel, and finding all of it again."""
_STORY_FIRST = "remove[xenpod] or each_other or both_daemons_killed or consoles"
"""A pod from run to remove, two that meet, and the daemons' death."""


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


def _rest(chosen: str) -> tuple[str, str]:
    return "-k", f"not ({chosen})"


SUITES = (
    Suite("binding", ("tests/xen/inside/test_binding.py",), 210, tiers=_EVERY),
    Suite("toolstack", ("tests/xen/inside/test_toolstack.py",), 250),
    Suite("contract-pv", (*_CONTRACT, "-k", _CONTRACT_FIRST), 190, tiers=_EVERY),
    Suite("contract-pv-rest", (*_CONTRACT, *_rest(_CONTRACT_FIRST)), 300),
    Suite("contract-pvh", (*_CONTRACT, "-k", _PVH), 250, {"XENPOD_TEST_MODE": "pvh"}),
    Suite(
        "volumes",
        ("tests/contract/test_toolstack_shared.py", "tests/xen/inside/test_sharing.py", "--toolstack=libxl"),
        450,
    ),
    # dom0 has cgroup v2 alone, as hosts with systemd have: where other tiers ran may be v1 or both.
    Suite("fake-on-v2", (*_FAKE, "-k", "not many_at_once"), 250),
    Suite("agent", (*_AGENT, "-k", "not pvh"), 80, tiers=_EVERY),
    Suite("agent-pvh", (*_AGENT, "-k", "pvh"), 100),
    Suite("kernel", ("tests/xen/inside/test_kernel.py",), 240),
    Suite("conformance", ("tests/conformance", "--toolstack=libxl"), 1500),
    Suite("story", (*_STORY, "-k", _STORY_FIRST), 320, tiers=_EVERY),
    Suite("story-rest", (*_STORY, *_rest(_STORY_FIRST)), 400),
    Suite("killed-create", (*_KILLED, "-k", "create_zone"), 400),
    Suite("killed-destroy", (*_KILLED, *_rest("create_zone")), 350),
    # The last on its machine: a dom0 whose xenstored was restarted is of no more use.
    Suite("lost", ("tests/xen/inside/test_lost.py",), 250),
)
