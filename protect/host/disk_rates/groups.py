"""Control groups of the host's threads that serve a zone's disks: ``xenpod-disks/<domain's uuid>``.

The groups are at the root of the hierarchy: groups below protectd's unit would end with the unit, but zones
do not.  No manager can take the groups' controller away while a group uses it.

Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from daemonkit.host import mountinfo
from protect.host.disk_rates.throttle import can_throttle, lift, throttle
from protect.model.domain.shares import DiskRates

log = logging.getLogger(__name__)

_NAME = "xenpod-disks"
_PATIENCE_SECONDS = 2.0
"""Seconds within which the threads of a deleted domain have ended."""


class DiskGroups:
    """The groups below one hierarchy.  All methods block for a short time.  Errors are OSError."""

    def __init__(self, base: Path | None) -> None:
        """``base``: the hierarchy's root; None: this kernel has no controller for disks."""
        self._base = base

    @classmethod
    def find(cls, proc: Path = Path("/proc/self")) -> DiskGroups:
        """The groups of this host: in v1 or v2, depending on the version that has the controller."""
        for mount in mountinfo.read_mountinfo(proc / "mountinfo"):
            place = Path(mount.place)
            if mount.kind == "cgroup" and "blkio" in mount.options and can_throttle(place):
                return cls(place)
            if mount.kind == "cgroup2" and "io" in _words(place / "cgroup.controllers"):
                return cls(place)
        return cls(None)

    @property
    def usable(self) -> bool:
        return self._base is not None

    def group(self, name: str) -> Path:
        """The directory of a group; it may not exist."""
        if self._base is None:
            raise FileNotFoundError(f"this kernel has no control groups for disks: {name} can have none")
        return self._base / _NAME / name

    def make(self, name: str) -> Path:
        """Make a group, unless it exists."""
        group = self.group(name)
        group.parent.mkdir(exist_ok=True)
        for parent in (group.parent.parent, group.parent):
            control = parent / "cgroup.subtree_control"
            if control.exists() and "io" not in _words(control):
                _write(control, "+io")
        group.mkdir(exist_ok=True)
        if not can_throttle(group):
            self.remove(name)
            raise FileNotFoundError("this kernel has no rates of disks (CONFIG_BLK_DEV_THROTTLING)")
        return group

    def throttle(self, name: str, device: int, rates: DiskRates) -> None:
        """Set the rates of a device for an existing group."""
        throttle(self.group(name), device, rates)

    def lift(self, name: str) -> None:
        """Lift all rates of a group, if it exists."""
        if self._base is not None:
            lift(self.group(name))

    def place(self, name: str, thread: int) -> None:
        """Move a thread of the kernel into an existing group."""
        with suppress(ProcessLookupError):  # the thread has ended
            _write(self.group(name) / "cgroup.procs", str(thread))

    def remove(self, name: str) -> None:
        """Remove a group after its threads' ends; a group that stays is logged."""
        if self._base is None:
            return
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                self.group(name).rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    log.warning("a control group of disks stays: %s", error)
                    break
                time.sleep(0.005)  # nothing reports the group's last exit
            else:
                break
        with suppress(OSError):
            self.group(name).parent.rmdir()

    def remove_strays(self, mine: Container[str]) -> None:
        """Remove the groups of domains that are gone."""
        if self._base is not None and (self._base / _NAME).is_dir():
            for entry in list((self._base / _NAME).iterdir()):
                if entry.is_dir() and entry.name not in mine:
                    self.remove(entry.name)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _write(file: Path, text: str) -> None:
    """Write to an existing file; the kernel creates a control group's files."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
