"""The installed parts of nested Xen: QEMU, the hypervisor, the dom0 kernel, busybox."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

BOOT = Path("/boot")
MODULES = Path("/lib/modules")


class NotInstalled(Exception):
    """A missing part of nested Xen; the text names the Debian package."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a boot. ``hypervisor`` is gzipped, as in Debian's package."""

    qemu: Path
    hypervisor: Path
    kernel: Path
    kernel_version: str
    busybox: Path


def find_parts(boot: Path = BOOT, modules: Path = MODULES) -> Parts:
    """Find the newest installed parts; :class:`NotInstalled` names the missing packages."""
    absent: list[str] = []
    qemu = shutil.which("qemu-system-x86_64")
    if qemu is None:
        absent.append("qemu-system-x86")
    busybox = shutil.which("busybox")
    if busybox is None:
        absent.append("busybox")
    hypervisors = sorted(boot.glob("xen-[0-9]*.gz"), key=version_key)
    if not hypervisors:
        absent.append("xen-hypervisor-4.17-amd64")
    if not list(Path("/usr/lib").glob("xen-*/bin/xen-init-dom0")):
        absent.append("xen-utils-4.17")
    kernels = [k for k in boot.glob("vmlinuz-*") if _suits_dom0(modules / k.name.removeprefix("vmlinuz-"))]
    if not kernels:
        absent.append("linux-image-amd64")
    if absent:
        raise NotInstalled(f"nested Xen needs Debian packages: apt-get install {' '.join(absent)}")
    assert qemu is not None and busybox is not None
    kernel = max(kernels, key=version_key)
    return Parts(
        qemu=Path(qemu),
        hypervisor=hypervisors[-1],
        kernel=kernel,
        kernel_version=kernel.name.removeprefix("vmlinuz-"),
        busybox=Path(busybox),
    )


def version_key(path: Path) -> list[int]:
    """Orders files by the numbers in their names."""
    return [int(number) for number in re.findall(r"\d+", path.name)]


def _suits_dom0(modules: Path) -> bool:
    """The cloud kernel has no 9p, the file system for dom0's view of the host."""
    return (modules / "modules.dep").exists() and any(modules.glob("kernel/net/9p/9pnet_virtio.ko*"))
