"""What the machine is, and has: fake zones share its kernel."""

from __future__ import annotations

import os
from pathlib import Path

from protect.toolstack.port import PhysicalInfo

_USERS = Path("/proc/self/ns/user")
_MOST_USERS = Path("/proc/sys/user/max_user_namespaces")


def memory() -> int:
    """Bytes of memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def info(total: int, free: int, notice: str) -> PhysicalInfo:
    """``total`` and ``free``: bytes for zones."""
    return PhysicalInfo(
        total,
        free,
        len(os.sched_getaffinity(0)),
        f"fake on Linux {os.uname().release}",
        security_boundary=False,
        notices=(notice,),
        user_namespaces=user_namespaces(),
    )


def user_namespaces() -> bool:
    """Whether this kernel has any to give (namespaces(7))."""
    return _USERS.exists() and int(_MOST_USERS.read_text()) > 0
