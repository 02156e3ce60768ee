"""Identifies the process at the other end of a connection, by its credentials and /proc at connect time.

The gRPC server sees only the peer-credential proxy.  Each connection of the proxy to the server therefore has
a name in the abstract namespace; the server shows the name for every call (docs/adr/0055).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "unix-abstract:"
_LONGEST_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Caller:
    """A connected process.  ``executable`` and ``unit``: "" if unreadable."""

    uid: int
    pid: int
    executable: str = ""
    unit: str = ""
    """The systemd unit: ``kubelet.service``, ``session-3.scope``."""


NOBODY = Caller(-1, 0)
"""The caller of a call on an unknown connection."""


class Callers:
    """The callers of a server, by the name of their connection."""

    def __init__(self) -> None:
        self._known: dict[str, Caller] = {}

    def add(self, name: bytes, uid: int, pid: int) -> None:
        """A connection begins; ``name``: its address, with a leading zero byte."""
        self._known[_key(name)] = Caller(uid, pid, executable(pid), unit(pid))

    def remove(self, name: bytes) -> None:
        """A connection has ended."""
        self._known.pop(_key(name), None)

    def of(self, peer: str) -> Caller:
        """The caller of a call, by gRPC's peer name."""
        return self._known.get(peer.removeprefix(_PREFIX), NOBODY)


def executable(pid: int) -> str:
    """The path of a process's program; "": the process has ended, or is a kernel thread."""
    try:
        return _text(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def unit(pid: int) -> str:
    """The systemd unit of a process: the last unit in the path of its control group."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return ""
    for line in groups.splitlines():
        for part in reversed(line.rpartition(":")[2].split("/")):
            if part.endswith((".service", ".scope")):
                return _text(part)
    return ""


def _key(name: bytes) -> str:
    return name.removeprefix(b"\0").decode("ascii", "replace")


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode("utf-8")[:_LONGEST_CHARACTERS]
