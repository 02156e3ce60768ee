"""PCI functions of the host in sysfs: checks whether a domain can get a function.

Sources: Documentation/ABI/testing/sysfs-bus-pci of the kernel, drivers/xen/xen-pciback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from daemonkit.faults import Fault, Missing, Refused
from protect.host.blockdev import claim

FUNCTIONS = Path("/sys/bus/pci/devices")
PCIBACK = "pciback"
_BRIDGES = 0x06  # base class, PCI Code and ID Assignment
_UP = 1  # IFF_UP, netdevice(7)
_OPERATION = "assign PCI function"


def check_function(address: str, functions: Path = FUNCTIONS) -> None:
    """Check that a function can be given away.  Missing: no such function; Refused with the reason."""
    place = functions / address
    if not place.exists():
        raise Missing(_OPERATION, address, "there is no such function", "lspci -D lists those that are there")
    if int((place / "class").read_text(), 16) >> 16 == _BRIDGES:
        raise Refused(_OPERATION, address, "it is a bridge, and others are behind it")
    if not can_reset(address, functions):
        cause = "it cannot be reset: the next zone would find what the last one left in it"
        raise Refused(
            _OPERATION, address, cause, "use a function with FLR, or one that has its bus to itself"
        )
    if driver(address, functions) != PCIBACK and (users := "; ".join(_users(place))):
        raise Refused(_OPERATION, address, f"the host uses it: {users}", "release it there first")


def driver(address: str, functions: Path = FUNCTIONS) -> str:
    """The name of the function's driver in the host; "" for none."""
    link = functions / address / "driver"
    return link.resolve().name if link.exists() else ""


def can_reset(address: str, functions: Path = FUNCTIONS) -> bool:
    """Whether the kernel can reset the function; only then the file exists."""
    return (functions / address / "reset").exists()


def reset(address: str, functions: Path = FUNCTIONS) -> None:
    """Reset an unused function.  OSError: the kernel could not."""
    (functions / address / "reset").write_text("1")


def _users(place: Path) -> Iterator[str]:
    """The host's uses of the function.  A driver alone is no use."""
    for kind in ("net", "block"):
        for found in sorted(place.rglob(f"{kind}/*")):
            if kind == "net" and int((found / "flags").read_text(), 16) & _UP:
                yield f"the interface {found.name} is up"
            if kind == "block" and (why := _held(found)):
                yield why


def _held(block: Path) -> str:
    node = Path("/dev") / block.name
    if not (block / "dev").exists() or not os.path.exists(node):
        return ""
    try:
        claim(node, readonly=True).close()
    except Fault as fault:
        return f"{node}: {fault.cause}"
    return ""
