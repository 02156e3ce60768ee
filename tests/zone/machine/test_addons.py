"""The agent on a kernel from an image: its early modules, and the other modules on a disk.

QEMU in software emulation, as in test_guest.py; tests/xen/inside/test_zone_kernel.py has the same on Xen.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protect.toolstack.libxl.kernels import concatenate
from tests.support.agent.zone import ZONE
from tests.support.images.guest_kernel import early_and_addons
from tests.zone.machine.test_guest import Guest, installed_kernel, serial_root

pytestmark = [pytest.mark.slow, pytest.mark.root]

EARLY = ("virtio-pci", "virtio-blk", "squashfs")
LATE = ("erofs", "overlay")


@pytest.fixture(scope="module")
def guest(parts: Path, image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    kernel = installed_kernel()
    folder = tmp_path_factory.mktemp("addons")
    early, addons = early_and_addons(kernel.name.removeprefix("vmlinuz-"), folder, EARLY, LATE)
    own = folder / "own.cpio"
    tool = [sys.executable, str(ZONE / "initramfs.py"), "--root", str(serial_root(parts, folder))]
    subprocess.run([*tool, "--output", str(own)], check=True)
    concatenate((early, own), folder / "joined")
    guest = Guest(kernel, folder / "joined", image, folder, addons)
    yield guest
    guest.machine.kill()
    guest.machine.wait()


def test_a_container_on_modules_of_the_addons(guest: Guest) -> None:
    client = guest.client
    created = client.start("c1", "cat", "/proc/modules", disk="vda")
    assert client.exited("c1").exit_code == 0
    loaded = {line.split()[0] for line in client.output(created.stdout_stream).decode().splitlines()}
    assert {"squashfs", "virtio_blk", "overlay", "erofs"} <= loaded
    assert "agent: load module" not in guest.console() and "agent: mount" not in guest.console()
