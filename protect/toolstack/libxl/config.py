"""Translates a domain to and from libxl's JSON (libxl_domain_config)."""

from __future__ import annotations

from collections.abc import Mapping

from protect.model.toolstack import DomainId, DomainInfo, DomainSpec, DomainState, Mode, ShutdownReason
from protect.toolstack.libxl.boot import Boot, command_line
from protect.toolstack.libxl.deaths import REASONS
from protect.toolstack.libxl.kernels import ADDONS
from protect.toolstack.libxl.room.blkfront import BlockFrontend
from protect.toolstack.libxl.sharing import ENVIRONMENT
from xenbind import domain as xen

NO_SCRIPT = "/bin/true"
"""The hotplug script that libxl runs instead of Debian's: we write their part to xenstore."""

MARK = "xenpod"
"""The node below a domain's own in which libxl writes its mark as it makes the domain."""

_KIB = 1024
SLACK_KIB = 1024
"""LIBXL_MAXMEM_CONSTANT: what libxl adds to the requested memory for a domain's limit."""


def domain_config(
    spec: DomainSpec, boot: Boot, arguments: str, pool: Mapping[str, int] | None = None
) -> dict[str, object]:
    """The configuration for ``spec``, to boot from ``boot``.  Invalid: its environment cannot be passed."""
    kind = spec.mode.value
    addons = {"XENPOD_ADDONS": ADDONS} if spec.kernel and spec.kernel.addons else {}
    hotplug = {"XENPOD_CPUS": "hotplug"} if spec.most_vcpus > 1 else {}
    environment = {**spec.environment, **(ENVIRONMENT if spec.shared else {}), **addons, **hotplug}
    label = {"ssid_label": spec.seclabel} if spec.seclabel else {}
    passthrough = {"passthrough": "enabled"} if spec.passthrough else {}
    frontend = BlockFrontend.of(spec.memory_bytes, spec.vcpus)
    mark = {"xsdata": {MARK: spec.mark}} if spec.mark else {}
    identity = {"type": kind, "name": spec.name, "uuid": str(spec.uuid)}
    return {
        "c_info": {**identity, **label, **(pool or {}), **passthrough, **mark},
        "b_info": {
            f"type.{kind}": {},
            "max_vcpus": spec.most_vcpus,
            "avail_vcpus": list(range(first_vcpus(spec))),
            "max_memkb": spec.most_memory // _KIB,
            "target_memkb": spec.memory_bytes // _KIB,
            # Xen sets its memory aside before any of it is filled: two creates cannot both count on the same.
            "claim_mode": True,
            "kernel": str(boot.kernel),
            "ramdisk": str(boot.initramfs),
            "cmdline": command_line(f"{frontend.arguments} {arguments}{_maxcpus(spec)}", environment),
        },
        "nics": [
            {"devid": number, "nictype": "vif", "script": NO_SCRIPT} for number in range(spec.interfaces)
        ],
        "on_poweroff": "preserve",
        "on_reboot": "preserve",
        "on_crash": "preserve",
    }


def first_vcpus(spec: DomainSpec) -> int:
    """How many vCPUs the domain is made with, of those that it can have.

    A PVH kernel can start later only those that its ACPI tables have as there, so these have all, and Linux
    is told to leave some alone.  Told so, a PV kernel could never start them.
    """
    return spec.most_vcpus if spec.mode is Mode.PVH else spec.vcpus


def _maxcpus(spec: DomainSpec) -> str:
    return f" maxcpus={spec.vcpus}" if spec.vcpus < first_vcpus(spec) else ""


def overhead_bytes(memory_bytes: int, vcpus: int) -> int:
    """Memory that Xen needs for a domain beside its own (libxl_get_required_shadow_memory, rounded up)."""
    return (4 << 20) + vcpus * (1 << 20) + memory_bytes // 128


def map_bytes(spec: DomainSpec) -> int:
    """What the guest's kernel keeps of its own to know the pages that it may get later (struct page)."""
    return (spec.most_memory - spec.memory_bytes) // 64


def domain_info(info: xen.Info) -> DomainInfo:
    """A domain as the port describes it, from what Xen says."""
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
