"""Suites for dom0, with their usual durations.

``make test`` may take at most 20 minutes, and each long suite has two parts: tests for every change, and the
rest, for ``make test-xen``.  The first part has the tests of its ``-k``, the second part all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.xen.qemu import Size

_CONTRACT = ("tests/contract/test_toolstack.py", "--toolstack=libxl")
_SIZES = ("tests/contract/test_toolstack_sizes.py", "tests/xen/inside/test_sizes.py", "--toolstack=libxl")
_SIZES_PVH = "grows or hot_plug or come_and_go or container_sees or up_and_down or cannot_give"
_STORY = ("tests/xen/inside/test_story.py",)
_AGENT = ("tests/xen/inside/test_agent.py",)
_KILLED = ("tests/xen/inside/protectd/test_killed.py",)
_FAKE = (
    "tests/contract/test_toolstack.py",
    "tests/contract/test_toolstack_fake.py",
    "tests/contract/test_toolstack_rates.py",
    "--toolstack=fake",
)
_IOMMU = (
    *("-machine", "q35", "-device", "intel-iommu,intremap=on"),
    *("-blockdev", "driver=null-co,node-name=spare,size=16777216,read-zeroes=on"),
    *("-device", "nvme,serial=spare,drive=spare,addr=0x10"),
)
"""A machine with an IOMMU, and an unused function with its own reset."""
SIZE = Size(cpus=1)
"""The usual machine: two run at the same time."""
_EVERY, _FULL = frozenset({"quick", "full"}), frozenset({"full"})
_PVH = "paused or crash or seen or spliced or clock"
"""Tests whose result may depend on the mode."""
_CONTRACT_FIRST = (
    "mark or paused or frees_everything or own_will or by_a_crash or comes_and_goes or beside "
    "or spliced_interface or connection_replaces or after_a_restart or nobody_watched"
)
"""A domain's life and end, a disk, an interface, the channel, and recovery of all parts."""
_STORY_FIRST = "remove[xenpod] or both_daemons_killed"
"""A pod from run to remove, and the daemons' death."""
_BINDING = ("tests/xen/inside/test_binding.py",)
_BINDING_FIRST = "physical or ends or errors or failed_create or xenstore or disks or bytes"
"""libxl's structures, events and errors in Python, xenstore, and a vchan."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A run of pytest."""

    name: str
    arguments: tuple[str, ...]
    seconds: float
    """Usual duration beside a second machine; after several times this duration the suite is ended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    hypervisor: str = ""
    """Further words for Xen's command line, on a separate machine."""
    hardware: tuple[str, ...] = ()
    """Further arguments for QEMU, on a separate machine."""
    size: Size = SIZE
    """Another size of the machine.  A suite with another size gets its own machine."""
    store: str = "xenstored"
    """The Xenstore program.  Another program gets its own machine."""
    tiers: frozenset[str] = _FULL
    """``--xen`` settings with the suite: ``make test`` is quick, ``make test-xen`` full."""

    @property
    def wants_own_machine(self) -> bool:
        return bool(self.hypervisor or self.hardware or self.store != "xenstored" or self.size != SIZE)

    @property
    def deadline(self) -> float:
        """Seconds until the suite has failed."""
        return 120 + 5 * self.seconds


def _rest(chosen: str) -> tuple[str, str]:
    return "-k", f"not ({chosen})"


SUITES = (
    Suite("binding", (*_BINDING, "-k", _BINDING_FIRST), 110, tiers=_EVERY),
    Suite("binding-rest", (*_BINDING, *_rest(_BINDING_FIRST)), 110),
    Suite("toolstack", ("tests/xen/inside/test_toolstack.py",), 250),
    Suite("contract-pv", (*_CONTRACT, "-k", _CONTRACT_FIRST), 190, tiers=_EVERY),
    Suite("contract-pv-rest", (*_CONTRACT, *_rest(_CONTRACT_FIRST)), 300),
    Suite("contract-pvh", (*_CONTRACT, "-k", _PVH), 250, {"XENPOD_TEST_MODE": "pvh"}),
    Suite("sizes-pv", _SIZES, 500),
    Suite("sizes-pvh", (*_SIZES, "-k", _SIZES_PVH), 400, {"XENPOD_TEST_MODE": "pvh"}),
    Suite(
        "disk-rates",
        (
            "tests/contract/test_toolstack_rates.py",
            "tests/xen/inside/test_disk_rates.py",
            "--toolstack=libxl",
        ),
        250,
    ),
    Suite(
        "volumes",
        ("tests/contract/test_toolstack_shared.py", "tests/xen/inside/test_sharing.py", "--toolstack=libxl"),
        450,
    ),
    Suite(
        "devices",
        (
            "tests/contract/test_toolstack_devices.py",
            "tests/contract/test_toolstack_disks.py",
            "--toolstack=libxl",
        ),
        400,
    ),
    Suite("hostile", ("tests/xen/inside/test_hostile.py",), 180),
    # dom0 has cgroup v2 alone, as hosts with systemd: other tiers may have run on v1 or both.
    Suite("fake-on-v2", (*_FAKE, "-k", "not many_at_once"), 250),
    Suite("agent", (*_AGENT, "-k", "not pvh"), 80, tiers=_EVERY),
    Suite("agent-pvh", (*_AGENT, "-k", "pvh"), 100),
    Suite("clock", ("tests/xen/inside/test_clock.py",), 250),
    Suite("deaths", ("tests/xen/inside/protectd/test_deaths.py",), 250),
    Suite("host", ("tests/xen/inside/test_host.py",), 180, hypervisor="gnttab_max_maptrack_frames=10"),
    Suite("overhead", ("tests/xen/inside/protectd/test_overhead.py",), 100),
    Suite("crowd", ("tests/xen/inside/protectd/test_crowd.py",), 700),
    Suite("pci", ("tests/xen/inside/test_pci.py",), 200, hardware=_IOMMU),
    Suite("kernel", ("tests/xen/inside/test_zone_kernel.py",), 240),
    Suite("conformance", ("tests/conformance", "--toolstack=libxl"), 1800),
    # Kubernetes' control plane takes most of dom0.
    Suite("e2e-sample", ("tests/xen/inside/test_e2e_sample.py",), 2400, size=Size(9728, 5120, 2)),
    Suite("story", (*_STORY, "-k", _STORY_FIRST), 220, tiers=_EVERY),
    Suite("story-rest", (*_STORY, *_rest(_STORY_FIRST)), 500),
    Suite("killed-create", (*_KILLED, "-k", "create_zone"), 1000),
    Suite("killed-destroy", (*_KILLED, *_rest("create_zone")), 800),
    Suite("killed-changes", ("tests/xen/inside/protectd/test_killed_changes.py",), 1100),
    # Debian's default; the C xenstored of the other suites needs less of an emulated CPU.
    Suite(
        "oxenstored",
        ("tests/xen/inside/protectd/test_deaths.py", "tests/xen/inside/protectd/test_lost.py"),
        450,
        store="oxenstored",
    ),
    # The last suite on its machine: a dom0 with a restarted xenstored is of no more use.
    Suite("lost", ("tests/xen/inside/protectd/test_lost.py",), 250),
)
