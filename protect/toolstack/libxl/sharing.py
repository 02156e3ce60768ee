"""How a domain shares a directory with dom0: 9pfs, served by a QEMU of its own, which libxl starts.

QEMU opens the directory by its path whenever the guest connects, and a guest can do that again and again.
So the path must lead to that directory, and nothing else, for as long as the QEMU lives: it is in a mount
namespace of QEMU's own, which ``zone/devicemodel`` makes before it becomes the QEMU.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from daemonkit.faults import Missing

TAG = "xenpod"
"""By which the guest mounts it."""

ENVIRONMENT = {"XENPOD_SHARED": f"9p:{TAG}"}
"""For the agent."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """``launcher`` is ``zone/devicemodel``, ``place`` a directory that every QEMU covers for itself."""

    launcher: Path
    place: Path
    qemu: Path

    def prepare(self) -> None:
        """Before the first domain.  OSError."""
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)

    def check(self, domain: str, namespace: Path) -> None:
        """Missing when the directory cannot be shared."""
        if not namespace.is_file():
            raise Missing("create domain", domain, f"there is no mount namespace {namespace} to share")
        for program, hint in ((self.launcher, "make -C zone"), (self.qemu, "install qemu-system-xen")):
            if not program.is_file():
                raise Missing("create domain", domain, f"no {program}, which volumes need", hint)

    def build_info(self, namespace: Path) -> dict[str, object]:
        """The part of libxl_domain_build_info that has the launcher run in QEMU's place."""
        extra = ["-xenpod-share", str(namespace), str(self.place), str(self.qemu)]
        return {"device_model": str(self.launcher), "extra": extra}

    def device(self) -> dict[str, object]:
        """libxl_device_p9; files keep the guest's owners and modes."""
        return {"devid": 0, "tag": TAG, "path": str(self.place), "security_model": "none"}
