"""Translates a domain to and from libxl's JSON (libxl_domain_config)."""

from __future__ import annotations

from protect.model.toolstack import DomainId, DomainInfo, DomainSpec, DomainState, ShutdownReason
from protect.toolstack.libxl.boot import Boot, command_line
from protect.toolstack.libxl.deaths import REASONS
from protect.toolstack.libxl.kernels import ADDONS
from protect.toolstack.libxl.sharing import ENVIRONMENT
from xenbind import domain as xen

NO_SCRIPT = "/bin/true"
"""The hotplug script that libxl runs instead of Debian's: we write their part to xenstore."""

MARK = "xenpod"
"""The node below a domain's own in which libxl writes its mark as it makes the domain."""

_KIB = 1024
_SLACK_KIB = 1024
"""LIBXL_MAXMEM_CONSTANT: what libxl adds to the requested memory for a domain's limit."""


def domain_config(spec: DomainSpec, boot: Boot, arguments: str) -> dict[str, object]:
    """The configuration for ``spec``, to boot from ``boot``.  Invalid: its environment cannot be passed."""
    kind = spec.mode.value
    addons = {"XENPOD_ADDONS": ADDONS} if spec.kernel and spec.kernel.addons else {}
    environment = {**spec.environment, **(ENVIRONMENT if spec.shared else {}), **addons}
    label = {"ssid_label": spec.seclabel} if spec.seclabel else {}
    mark = {"xsdata": {MARK: spec.mark}} if spec.mark else {}
    memory = spec.memory_bytes // _KIB
    return {
        "c_info": {"type": kind, "name": spec.name, "uuid": str(spec.uuid), **label, **mark},
        "b_info": {
            f"type.{kind}": {},
            "max_vcpus": spec.vcpus,
            "avail_vcpus": list(range(spec.vcpus)),
            "max_memkb": memory,
            "target_memkb": memory,
            "kernel": str(boot.kernel),
            "ramdisk": str(boot.initramfs),
            "cmdline": command_line(arguments, environment),
        },
        "nics": [
            {"devid": number, "nictype": "vif", "script": NO_SCRIPT} for number in range(spec.interfaces)
        ],
        "on_poweroff": "preserve",
        "on_reboot": "preserve",
        "on_crash": "preserve",
    }


def overhead_bytes(spec: DomainSpec) -> int:
    """Memory that Xen needs for a domain beside its own (libxl_get_required_shadow_memory, rounded up)."""
    return (4 << 20) + spec.vcpus * (1 << 20) + spec.memory_bytes // 128


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
        memory_bytes=max(0, info.memory_max_kib - _SLACK_KIB) * 1024,
        vcpus=info.vcpus,
        cpu_time_ns=info.cpu_time_ns,
        shutdown_reason=REASONS.get(info.shutdown_reason, ShutdownReason.UNKNOWN) if info.shutdown else None,
    )
