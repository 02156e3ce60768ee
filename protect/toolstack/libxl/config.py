"""Translates a domain to and from libxl's JSON (libxl_domain_config)."""

from __future__ import annotations

from collections.abc import Mapping

from protect.model.toolstack import DomainId, DomainInfo, DomainSpec, DomainState, Mode, ShutdownReason
from protect.toolstack.libxl.boot import Boot, command_line
from protect.toolstack.libxl.capacity.blkfront import BlockFrontend
from protect.toolstack.libxl.deaths import REASONS
from protect.toolstack.libxl.kernels import ADDONS
from protect.toolstack.libxl.sharing import ENVIRONMENT
from xenbind import domain as xen

NO_SCRIPT = "/bin/true"
"""The hotplug script that libxl runs instead of Debian's; we write the script's xenstore nodes ourselves."""

MARK = "xenpod"
"""The node below a domain's own; libxl writes the mark into it during the create."""

_KIB = 1024
HOTPLUG_MAX = "xenpod-memory-max"
"""Node of the domain's maximum memory with hot-plug, in KiB, written like the mark."""
SLACK_KIB = 1024
"""LIBXL_MAXMEM_CONSTANT: added by libxl to the requested memory to get a domain's limit."""


def domain_config(
    spec: DomainSpec, boot: Boot, arguments: str, pool: Mapping[str, int] | None = None
) -> dict[str, object]:
    """The configuration for ``spec``, to boot from ``boot``.  Invalid: the environment cannot be passed."""
    kind = spec.mode.value
    addons = {"XENPOD_ADDONS": ADDONS} if spec.kernel and spec.kernel.addons else {}
    hotplug = {"XENPOD_CPUS": "hotplug"} if spec.most_vcpus > 1 else {}
    environment = {**spec.environment, **(ENVIRONMENT if spec.shared else {}), **addons, **hotplug}
    label = {"ssid_label": spec.seclabel} if spec.seclabel else {}
    passthrough = {"passthrough": "enabled"} if spec.passthrough else {}
    frontend = BlockFrontend.of(spec.memory_bytes, spec.vcpus)
    nodes = {MARK: spec.mark} if spec.mark else {}
    if spec.hotplug_max_bytes:
        nodes[HOTPLUG_MAX] = str(spec.hotplug_max_bytes // _KIB)
    mark = {"xsdata": nodes} if nodes else {}
    identity = {"type": kind, "name": spec.name, "uuid": str(spec.uuid)}
    return {
        "c_info": {**identity, **label, **(pool or {}), **passthrough, **mark},
        "b_info": {
            f"type.{kind}": {},
            "max_vcpus": spec.most_vcpus,
            "avail_vcpus": list(range(first_vcpus(spec))),
            "max_memkb": spec.built_memory // _KIB,
            "target_memkb": spec.memory_bytes // _KIB,
            # Xen reserves the memory before the fill: two creates cannot count on the same memory.
            "claim_mode": True,
            "kernel": str(boot.kernel),
            "ramdisk": str(boot.initramfs),
            "cmdline": command_line(
                f"{frontend.arguments} {arguments}{_maxcpus(spec)}{_hotplug(spec)}", environment
            ),
        },
        "nics": [
            {"devid": number, "nictype": "vif", "script": NO_SCRIPT} for number in range(spec.interfaces)
        ],
        "on_poweroff": "preserve",
        "on_reboot": "preserve",
        "on_crash": "preserve",
    }


def first_vcpus(spec: DomainSpec) -> int:
    """Number of vCPUs at the domain's creation.

    A PVH kernel can hot-plug only vCPUs that its ACPI tables mark as present.  Therefore a PVH domain is
    created with its maximum, and ``maxcpus`` makes Linux leave the rest offline.  A PV kernel could never
    start vCPUs above ``maxcpus``.
    """
    return spec.most_vcpus if spec.mode is Mode.PVH else spec.vcpus


def _maxcpus(spec: DomainSpec) -> str:
    return f" maxcpus={spec.vcpus}" if spec.vcpus < first_vcpus(spec) else ""


def _hotplug(spec: DomainSpec) -> str:
    """Debian's kernels leave hot-plugged memory offline by default; the balloon cannot use offline memory."""
    return " memhp_default_state=online" if spec.hotplug_max_bytes else ""


def overhead_bytes(memory_bytes: int, vcpus: int) -> int:
    """Xen's memory for a domain beside the domain's own, rounded up."""
    return (4 << 20) + paging_pool_bytes(memory_bytes, vcpus)


def paging_pool_bytes(memory_bytes: int, vcpus: int) -> int:
    """Pool of a PVH domain's page tables (libxl_get_required_shadow_memory)."""
    return vcpus * (1 << 20) + memory_bytes // 128


def map_bytes(spec: DomainSpec) -> int:
    """Guest memory for the kernel's table of pages that the guest may get later (struct page), in bytes."""
    return (spec.built_memory - spec.memory_bytes) // 64


def domain_info(info: xen.Info) -> DomainInfo:
    """A domain in the port's form, from Xen's information."""
    state = (
        DomainState.SHUTDOWN if info.shutdown else DomainState.PAUSED if info.paused else DomainState.RUNNING
    )
    return DomainInfo(
        id=DomainId(info.domid),
        uuid=info.uuid,
        name=info.name,
        state=state,
        memory_bytes=max(0, info.memory_max_kib - SLACK_KIB) * 1024,
        vcpus=info.vcpus,
        cpu_time_ns=info.cpu_time_ns,
        shutdown_reason=REASONS.get(info.shutdown_reason, ShutdownReason.UNKNOWN) if info.shutdown else None,
        held_bytes=max(0, info.memory_kib - SLACK_KIB) * 1024,
        vcpus_online=info.vcpus_online,
    )
