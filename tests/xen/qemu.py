"""QEMU's arguments for a machine with Xen: features of its processor, and its boot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CPU = "max,-smap,-smep,-rdtscp,-xsave"
"""Emulated, a PV dom0 crashes with SMAP, PVH guests die with RDTSCP, and 1% of processes with XSAVE."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the machine; zones get the rest beside dom0."""

    machine_mib: int = 5632
    dom0_mib: int = 2560
    cpus: int = 2


@dataclass(frozen=True, slots=True)
class Boot:
    """``xen``: unpacked for QEMU; each program has its command line beside its path."""

    xen: Path
    xen_words: str
    kernel: Path
    kernel_words: str
    initramfs: Path


def arguments(qemu: Path, boot: Boot, size: Size, console: Path) -> list[str]:
    """The command; its process ends with the calling process. ``console``: the file for Xen's and dom0's
    output.
    """
    return [
        *("setpriv", "--pdeathsig", "KILL"),  # the machine must not outlive us, however we end
        *(str(qemu), "-nodefaults", "-display", "none", "-no-reboot", "-no-user-config"),
        *("-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", str(size.cpus), "-m", str(size.machine_mib)),
        *("-kernel", str(boot.xen), "-append", boot.xen_words),
        *("-initrd", f"{boot.kernel} {boot.kernel_words},{boot.initramfs}"),
        *("-chardev", f"file,id=console,path={console}", "-serial", "chardev:console"),
        *("-device", "virtio-serial", "-device", "virtio-rng"),
    ]
