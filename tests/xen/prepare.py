"""Builds on the host for dom0: the zone's initramfs, the binding, a test guest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.xen.images import guest_image
from tests.xen.machine import CHECKOUT, small_kernel, zone_kernel


def guest_parts() -> None:
    """The agent's initramfs for the zone kernel, and xenbind; quick if already built."""
    subprocess.run(
        ["make", "-s", "-C", "zone", "initramfs", f"KVER={_version(zone_kernel())}"], cwd=CHECKOUT, check=True
    )
    subprocess.run([sys.executable, "-m", "xenbind.build"], cwd=CHECKOUT, check=True)


def peer_guest(folder: Path) -> Path:
    """The initramfs of the guest in tests of the binding."""
    return guest_image.build(_version(small_kernel()), folder)


def _version(kernel: Path) -> str:
    return kernel.name.removeprefix("vmlinuz-")
