"""A zone on another kernel than the toolstack's: early modules, addons as a disk, containers on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from daemonkit.faults import Fault, Invalid
from protect.channel.link import Link
from protect.model.toolstack import DiskSpec, DomainKernel, DomainSpec, Mode
from protect.model.zone import domain_name
from protect.toolstack.libxl.settings import LibxlSettings
from protect.toolstack.libxl.toolstack import LibxlToolstack
from tests.support.agent.link_owner import Owner
from tests.support.agent.zone import BUILD
from tests.support.agent.zone_image import busybox_squashfs
from tests.support.images.guest_kernel import early_and_addons
from tests.xen import machine
from tests.xen.inside.conftest import MIB
from tests.xen.inside.test_agent import PATIENCE, Dialled, _finished, _start

EARLY = ("xen-gntalloc", "xen-gntdev", "xen-evtchn", "xen-blkfront", "squashfs")
LATE = ("erofs", "overlay")
"""Containers need the modules; addons need the early modules."""


def _kernel(folder: Path) -> DomainKernel:
    """Debian's cloud kernel, as in an image; the toolstack has another kernel."""
    image = machine.small_kernel()
    version = image.name.removeprefix("vmlinuz-")
    early, addons = early_and_addons(version, folder, EARLY, LATE)
    return DomainKernel("cloud", image, early, addons)


@pytest.mark.parametrize("mode", Mode)
async def test_a_zone_on_a_kernel_of_its_own(kernels: Path, tmp_path: Path, mode: Mode) -> None:
    mine = _kernel(tmp_path)
    toolstack = LibxlToolstack(kernels, BUILD, LibxlSettings(kernel=machine.zone_kernel()))
    await toolstack.start()
    uuid = uuid4()
    environment = {"XENPOD_ZONE": "z1", "XENPOD_CHANNEL": "vchan"}
    spec = DomainSpec(
        uuid, domain_name("kernel", uuid), 160 * MIB, 1, mode, environment=environment, kernel=mine
    )
    try:
        assert (await toolstack.physical_info()).kernels
        domain = await toolstack.create(spec)
        await toolstack.attach_disk(domain, DiskSpec("xvda", busybox_squashfs(tmp_path)))
        assert await toolstack.disks(domain) == ["xvda"]
        await toolstack.unpause(domain)
        link = Link("z1", Dialled(toolstack, domain), Owner())
        try:
            hello = await link.open(PATIENCE)
            assert hello.kernel_release == mine.image.name.removeprefix("vmlinuz-")
            assert hello.kernel_release not in machine.zone_kernel().name
            shown = (await _finished(await _start(link, "c1", "cat", "/proc/modules"))).decode()
            assert "\noverlay " in f"\n{shown}" and "\nsquashfs " in f"\n{shown}"
        except BaseException:
            sys.stdout.write((await toolstack.console(domain, 8192)).decode(errors="replace"))
            raise
        finally:
            await link.close()
        await _refuses(toolstack, spec, tmp_path)
        await toolstack.destroy(domain)
        assert not _loops(mine)
    finally:
        for info in await toolstack.list():
            if info.uuid == uuid:
                await toolstack.destroy(info.id)
        await toolstack.close()


async def _refuses(toolstack: LibxlToolstack, spec: DomainSpec, folder: Path) -> None:
    """An invalid kernel, and addons without a disk; no trace of the domain is left."""
    assert spec.kernel
    nonsense = folder / "nonsense"
    nonsense.write_bytes(os.urandom(1000))
    before = len(await toolstack.list())
    for broken in (
        DomainKernel("broken", nonsense),
        DomainKernel("broken", spec.kernel.image, spec.kernel.initramfs, nonsense),
    ):
        other = DomainSpec(uuid4(), f"broken-{uuid4().hex[:12]}", 160 * MIB, 1, kernel=broken)
        with pytest.raises(Fault) as caught:
            await toolstack.create(other)
        assert isinstance(caught.value, Invalid), caught.value
    assert len(await toolstack.list()) == before


def _loops(kernel: DomainKernel) -> str:
    listed = subprocess.run(["losetup", "--list", "--noheadings"], capture_output=True, text=True, check=True)
    return "".join(line for line in listed.stdout.splitlines() if str(kernel.addons) in line)
