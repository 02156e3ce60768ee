"""A plan: the settings that a node needs, that Debian does not make, and that a host lacks.

Sources: xen-command-line(7), Debian's /etc/default/grub.d/xen.cfg, /etc/init.d/xen, /etc/default/xendomains.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from daemonkit.config import load_config, size
from daemonkit.faults import Invalid, Refused
from hostsetup.setup.change import FileChange, Plan, variable, with_variable
from hostsetup.setup.host import MIB, Host, MachineSize
from protect.config import ProtectdConfig
from protect.model.capacity.host_resources import HostWants
from protect.toolstack.libxl.capacity.preflight import maptrack

GRUB = "/etc/default/grub.d/xenpod.cfg"
XEN = "/etc/default/xen"
XENDOMAINS = "/etc/default/xendomains"
CONSOLES = "/etc/tmpfiles.d/xenpod-consoles.conf"
FORWARDING = "/etc/sysctl.d/90-xenpod.conf"
CRICTL = "/etc/crictl.yaml"
KUBELET = "/etc/kubernetes/kubelet.conf.d/10-xenpod.conf"
UNITS = ("protectd.service", "xenpod-cri.service", "xenpod-zones.service")

_PROTECTD = "/etc/protect/protectd.toml"
_LEAST_MEMORY_BYTES = 1024 * MIB
_SHARE_OF_CPUS, _LEAST_CPUS = 4, 2
_ENDPOINT = "unix:///run/xenpod/cri.sock"
# Places of the drop-in: beside an installed environment, or in a checkout.
_DROP_INS = (
    Path(sys.prefix, "../../../share/xenpod/kubelet.conf"),
    Path(__file__).parents[2] / "packaging" / "kubelet" / "10-xenpod.conf",
)


@dataclass(frozen=True, slots=True)
class Wishes:
    """The operator's choices for dom0; None: the present setting, else the default."""

    dom0_memory: str | None = None
    """A part of the machine's memory, as "35%" (the default), or a size, as "8GiB"."""
    dom0_cpus: int | None = None
    """A number of vCPUs; the default is a quarter of the machine's CPUs, and at least two."""


def plan(host: Host, machine: MachineSize, wishes: Wishes) -> Plan:
    """Return the changes to make on the host; Refused: the host lacks a prerequisite."""
    files = [
        _change(
            host, GRUB, grub(host, machine, wishes), "Xen boots by default, dom0's share, room for zones"
        ),
        _change(host, XEN, _consoles(host), "xenconsoled keeps what zones say"),
        _change(host, CONSOLES, "d /var/log/xen/console 0700 root root -\n", "the folder of consoles"),
        _change(host, XENDOMAINS, _domains(host), "xendomains leaves zones alone"),
        _change(host, FORWARDING, "net.ipv4.ip_forward=1\n", "the host forwards packets of pods"),
        _change(host, CRICTL, _crictl(host), "crictl speaks to xenpod-cri"),
        _change(host, KUBELET, _kubelet(), "the kubelet's pods run with xenpod-cri"),
    ]
    changed = tuple(change for change in files if change.before != change.after)
    units = tuple(unit for unit in UNITS if not host.is_enabled(unit))
    return Plan(changed, units, _notes(host, changed))


def grub(host: Host, machine: MachineSize, wishes: Wishes) -> str:
    """Return our part of GRUB's settings, read after Debian's part for Xen."""
    if host.read("/etc/default/grub") is None:
        raise _not_there("/etc/default/grub", "grub-pc or grub-efi-amd64")
    before = _settings(host.read(GRUB) or "")
    memory = before.get("dom0_mem", "")
    if wishes.dom0_memory is not None or not memory:
        mib = dom0_memory(machine, wishes.dom0_memory or "35%") // MIB
        memory = f"{mib}M,max:{mib}M"
    cpus = before.get("dom0_max_vcpus", "")
    if wishes.dom0_cpus is not None or not cpus:
        cpus = str(_dom0_cpus(machine, wishes.dom0_cpus))
    words = [f"dom0_mem={memory}", f"dom0_max_vcpus={cpus}"]
    config = (
        load_config(ProtectdConfig, host.at(_PROTECTD))
        if host.read(_PROTECTD) is not None
        else ProtectdConfig()
    )
    limits = HostWants(config.limits.zones, config.limits.disks_per_zone)
    if frames := maptrack({}, limits):
        words.append(f"{frames.setting}={frames.wanted}")
    return (
        "# Written by xenpod-setup, which changes or removes it (--undo): settings of yours go elsewhere.\n"
        f'GRUB_CMDLINE_XEN_DEFAULT="$GRUB_CMDLINE_XEN_DEFAULT {" ".join(words)}"\n'
        'GRUB_DEFAULT="$GRUB_DISTRIBUTOR GNU/Linux, with Xen hypervisor"\n'
    )


def dom0_memory(machine: MachineSize, text: str) -> int:
    """Return dom0's memory in bytes, whole MiB; Invalid: no size, or too little for dom0 or zones."""
    try:
        if text.endswith("%"):
            wanted = machine.memory * float(text.removesuffix("%")) / 100
        else:
            wanted = float(size(text))
    except ValueError as error:
        raise Invalid(
            "set dom0's memory", text, f'not a size or a percentage such as "35%": {error}'
        ) from error
    wanted = max(wanted, _LEAST_MEMORY_BYTES) if text.endswith("%") else wanted
    if not _LEAST_MEMORY_BYTES <= wanted <= machine.memory - _LEAST_MEMORY_BYTES:
        least = _LEAST_MEMORY_BYTES // MIB
        has = f"the machine has {machine.memory // MIB} MiB, and dom0 and zones need {least} MiB each"
        raise Invalid("set dom0's memory", text, has)
    return int(wanted) // MIB * MIB


def _dom0_cpus(machine: MachineSize, wanted: int | None) -> int:
    if wanted is None:
        return min(machine.cpus, max(_LEAST_CPUS, machine.cpus // _SHARE_OF_CPUS))
    if not 1 <= wanted <= machine.cpus:
        raise Invalid("set dom0's vCPUs", str(wanted), f"the machine has {machine.cpus} CPUs")
    return wanted


def _settings(text: str) -> dict[str, str]:
    return dict(re.findall(r"\b(dom0_mem|dom0_max_vcpus)=([^\s\"]+)", text))


def _consoles(host: Host) -> str:
    text = host.read(XEN)
    if text is None:
        raise _not_there(XEN, "xen-system-amd64")
    words = [
        word for word in (variable(text, "XENCONSOLED_ARGS") or "").split() if not word.startswith("--log=")
    ]
    return with_variable(text, "XENCONSOLED_ARGS", f'"{" ".join([*words, "--log=guest"])}"')


def _domains(host: Host) -> str:
    text = host.read(XENDOMAINS)
    if text is None:
        raise _not_there(XENDOMAINS, "xen-system-amd64")
    for name, value in (("XENDOMAINS_SAVE", ""), ("XENDOMAINS_RESTORE", "false")):
        if variable(text, name) != value:
            text = with_variable(text, name, f'"{value}"' if not value else value)
    return text


def _crictl(host: Host) -> str:
    """Keep other arguments of the line, for example a deadline."""
    ours = {"runtime-endpoint": _ENDPOINT, "image-endpoint": _ENDPOINT}
    lines = (host.read(CRICTL) or "timeout: 30\n").splitlines()
    others = [line for line in lines if line.partition(":")[0].strip() not in ours]
    return "".join(f"{line}\n" for line in [*(f"{key}: {value}" for key, value in ours.items()), *others])


def _kubelet() -> str:
    for place in _DROP_INS:
        if place.exists():
            return place.read_text()
    raise Refused("find the kubelet's drop-in", str(_DROP_INS[0]), "it is not there", "install xenpod again")


def _change(host: Host, path: str, after: str, why: str) -> FileChange:
    return FileChange(path, host.read(path), after, why)


def _notes(host: Host, changed: tuple[FileChange, ...]) -> tuple[str, ...]:
    paths = {change.path for change in changed}
    notes = []
    if KUBELET in paths:
        notes.append(f"start the kubelet with --config-dir={Path(KUBELET).parent}")
    if GRUB in paths:
        if not host.live:
            notes.append("in the tree itself, run update-grub: nothing is run in a tree")
        notes.append("reboot: Xen reads its settings when it starts")
    elif XEN in paths:
        notes.append("restart xenconsoled (systemctl restart xen), or reboot")
    return tuple(notes)


def _not_there(path: str, package: str) -> Refused:
    return Refused("set the host up", path, "it is not there", f"apt-get install {package}")
