"""Linux capabilities of a container (capabilities(7))."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cri.checks.fields import CREATE
from cri.oci.values import Json
from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri

ALL = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
"""All capabilities, in the order of their numbers."""

DEFAULT = frozenset(
    {
        "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
        "NET_BIND_SERVICE", "NET_RAW", "SYS_CHROOT", "MKNOD", "AUDIT_WRITE", "SETFCAP",
    }
)  # fmt: skip
"""The default capabilities of containers, by convention."""


def grantable() -> frozenset[str]:
    """The capabilities in this daemon's bounding set (proc(5), CapBnd).

    A confined host lacks some capabilities; zones of the fake toolstack lack the same ones.
    """
    status = Path("/proc/self/status").read_text()
    mask = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapBnd:"))
    return frozenset(name for number, name in enumerate(ALL) if mask >> number & 1)


def capabilities(asked: cri.Capability, everything: frozenset[str], *, privileged: bool = False) -> Json:
    """The OCI capability sets.  None is inheritable: file capabilities would grant too much (CVE-2022-24769).

    ``everything``: the expansion of ALL.  A capability requested by name is never left out.  A privileged
    container has everything, whatever else the request says.
    """
    if privileged:
        asked = cri.Capability(
            add_capabilities=["ALL"], add_ambient_capabilities=asked.add_ambient_capabilities
        )
    dropped, added = _names(asked.drop_capabilities), _names(asked.add_capabilities)
    base = everything if "ALL" in added else frozenset() if "ALL" in dropped else DEFAULT
    granted = (base - (dropped - added if "ALL" in added else dropped)) | (added - {"ALL"})
    ambient = _names(asked.add_ambient_capabilities)
    ambient = everything if "ALL" in ambient else ambient
    granted |= ambient
    sets: dict[str, object] = {kind: _ordered(granted) for kind in ("bounding", "effective", "permitted")}
    if ambient:
        sets |= {"inheritable": _ordered(ambient), "ambient": _ordered(ambient)}
    return sets


def _names(asked: Iterable[str]) -> frozenset[str]:
    """Normalise names: ``NET_ADMIN``, ``CAP_NET_ADMIN`` or ``ALL``, in upper or lower case."""
    names = frozenset(name.upper().removeprefix("CAP_") for name in asked)
    if unknown := sorted(names - {"ALL", *ALL}):
        raise Invalid(CREATE, f"capability {unknown[0]!r:.80}", "there is none of that name")
    return names


def _ordered(names: frozenset[str]) -> list[str]:
    return [f"CAP_{name}" for name in ALL if name in names]
