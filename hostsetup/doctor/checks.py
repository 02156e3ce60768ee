"""All checks, in the order of mending: later checks need the earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hostsetup.doctor import host_checks, hypervisor, kubelet, networks
from hostsetup.doctor.doctor_settings import DoctorSettings
from hostsetup.doctor.machine import Check, CheckedMachine, CheckResult, CheckVerdict
from protect.config import ProtectdConfig, ToolstackKind
from protect.host.named_devices import is_pci
from protect.model.capacity.host_resources import HostNotice, HostWants
from protect.toolstack.libxl.capacity import preflight
from protect.toolstack.libxl.capacity.preflight import HostFacts

Checks = Sequence[Callable[[CheckedMachine, DoctorSettings], Check]]

OF_TOOLSTACK: dict[ToolstackKind, Checks] = {
    ToolstackKind.LIBXL: (hypervisor.xen, hypervisor.daemons, hypervisor.modules, hypervisor.preflight),
    ToolstackKind.FAKE: (),
}
"""The known toolstacks, as in ``protect.__main__.build_toolstack``."""
OF_HOST: Checks = (
    host_checks.configuration,
    host_checks.permissions,
    host_checks.control_groups,
    host_checks.disk,
    host_checks.clock,
    host_checks.forwarding,
    host_checks.tools,
    networks.networks,
    host_checks.sockets,
    kubelet.kubelet,
)


def run_checks(machine: CheckedMachine, settings: DoctorSettings) -> list[CheckResult]:
    """Run all checks.  Blocks: reads files, asks a socket, runs a few programs."""
    checks = (*OF_TOOLSTACK[settings.protectd.toolstack], *OF_HOST)
    return [result for check in checks for result in check(machine, settings)]


def is_healthy(results: Sequence[CheckResult]) -> bool:
    """Whether pods can run."""
    return all(result.verdict is not CheckVerdict.FAILED for result in results)


def notices_by_xl(machine: CheckedMachine, config: ProtectdConfig) -> Sequence[HostNotice] | None:
    """Notices of protectd's preflight while protectd is down, from ``xl info``; None: xl does not answer.

    The kernel of zones is left to protectd: protectd checks the kernel at its start, and names a missing one.
    """
    if config.toolstack is not ToolstackKind.LIBXL:
        return ()
    said = machine.says("xl", "info")
    if said is None:
        return None
    pairs = (line.partition(":") for line in said.splitlines())
    info = {key.strip(): value.strip() for key, _, value in pairs}
    target = machine.text("/sys/devices/system/xen_memory/xen_memory0/target_kb").strip()
    facts = HostFacts(
        xen=preflight.settings(info.get("xen_commandline", "")),
        dom0_bytes=int(target or 0) << 10,
        iommu="directio" in info.get("virt_caps", ""),
        volumes=True,
        launcher=config.guest_dir / "share",
    )
    wants = HostWants(
        zones=config.limits.zones,
        disks_per_zone=config.limits.disks_per_zone,
        pci=any(is_pci(device.place) for device in config.host.devices.values()),
    )
    return preflight.check_settings(facts, wants)
