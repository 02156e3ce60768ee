"""A PCI function of a machine with an IOMMU goes to zones and comes back (suite ``pci``)."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from daemonkit.faults import Exists, Refused
from protect.host import pci
from protect.model.toolstack import DiskSpec, Mode
from tests.support.images import busybox
from tests.support.protect.stage import Agent, LibxlStage

FUNCTION = "0000:00:10.0"
"""An NVMe controller, see tests/xen/suites.py."""
KIND = "0x010802"
PATIENCE = 120.0
SYSFS = {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", "nosuid"]}


@pytest.fixture(scope="module", autouse=True)
def pciback() -> None:
    subprocess.run(["modprobe", "xen-pciback"], check=True)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[LibxlStage]:
    stage = LibxlStage(tmp_path)
    await stage.open()
    try:
        yield stage
    finally:
        await stage.close()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    return busybox.build(folder / "busybox.squashfs", folder / "root")


async def booted(stage: LibxlStage, image: Path) -> Agent:
    agent = await stage.boot(passthrough=True)
    await stage.toolstack.attach_disk(agent.domain, DiskSpec("xvda", image))
    return agent


async def sees(agent: Agent, name: str, *kinds: str) -> None:
    """Wait until exactly the functions of the given classes are on the zone's bus."""
    script = "cat /sys/bus/pci/devices/*/class 2>/dev/null; true"
    found: list[str] = []
    number = 0
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                code, said = await agent.run(f"{name}{number}", "xvda", "sh", "-c", script, mounts=[SYSFS])
                assert code == 0, said
                found, number = said.decode().split(), number + 1
                if found == list(kinds):
                    return
    except TimeoutError:
        raise AssertionError(f"the zone sees {found}, not {kinds}") from None


async def test_pci_function_goes_from_zone_to_zone(stage: LibxlStage, image: Path) -> None:
    first, second = await booted(stage, image), await stage.create(passthrough=True)
    await stage.toolstack.attach_pci(first.domain, FUNCTION)
    await sees(first, "with", KIND)
    assert await stage.pci_functions(first.domain) == [FUNCTION]
    with pytest.raises(Exists):
        await stage.toolstack.attach_pci(first.domain, FUNCTION)
    with pytest.raises(Refused, match="contract.* has it"):
        await stage.toolstack.attach_pci(second.id, FUNCTION)
    assert await stage.pci_functions(second.id) == []
    await stage.toolstack.detach_pci(first.domain, FUNCTION)
    await sees(first, "without")
    assert await stage.pci_functions(first.domain) == []
    assert pci.driver(FUNCTION) == pci.PCIBACK, "dom0's own driver would trust what the zone left in it"
    await stage.toolstack.attach_pci(second.id, FUNCTION)
    assert await stage.pci_functions(second.id) == [FUNCTION]


async def test_pci_function_is_found_after_a_restart_and_freed_by_the_zones_end(
    stage: LibxlStage, image: Path
) -> None:
    agent = await booted(stage, image)
    domain = agent.domain
    await stage.toolstack.attach_pci(domain, FUNCTION)
    await stage.restart()
    assert await stage.pci_functions(domain) == [FUNCTION]
    await sees(await stage.connect(domain), "again", KIND)
    await stage.toolstack.destroy(domain)
    other = await booted(stage, image)
    await stage.toolstack.attach_pci(other.domain, FUNCTION)
    await sees(other, "other", KIND)


async def test_a_pvh_zone_is_refused(stage: LibxlStage) -> None:
    info = await stage.create(mode=Mode.PVH)
    with pytest.raises(Refused, match="pv guests alone"):
        await stage.toolstack.attach_pci(info.id, FUNCTION)
    await stage.toolstack.detach_pci(info.id, FUNCTION)


async def test_impossible_pci_functions_are_refused(stage: LibxlStage) -> None:
    """Bridges and functions without a reset, also with an IOMMU."""
    info = await stage.create(passthrough=True)
    for address in sorted(entry.name for entry in pci.FUNCTIONS.iterdir()):
        if address != FUNCTION:
            with pytest.raises(Refused, match="cannot be reset|is a bridge"):
                await stage.toolstack.attach_pci(info.id, address)
    assert await stage.pci_functions(info.id) == []
