"""PCI functions of the fake: a record that refuses like Xen, and outlives the daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemonkit.faults import Exists, Refused
from protect.toolstack.fake import FakeSettings
from tests.support.protect.stage import FakeStage, Stage

pytestmark = pytest.mark.root
CARD = "0000:65:00.0"


async def settings(stage: Stage, **changes: object) -> None:
    assert isinstance(stage, FakeStage)
    stage.settings = FakeSettings(**changes)  # type: ignore[arg-type]
    await stage.restart()


async def test_pci_function_has_a_single_domain_also_after_a_restart(stage: Stage, tmp_path: Path) -> None:
    await settings(stage, iommu=True, pci=(CARD,))
    first, second = await stage.create(passthrough=True), await stage.create(passthrough=True)
    without = await stage.create()
    await stage.toolstack.attach_pci(first.id, CARD)
    with pytest.raises(Exists):
        await stage.toolstack.attach_pci(first.id, CARD)
    await stage.restart()
    assert await stage.pci_functions(first.id) == [CARD]
    with pytest.raises(Refused, match=f"{first.name} has it"):
        await stage.toolstack.attach_pci(second.id, CARD)
    await stage.toolstack.destroy(first.id)
    with pytest.raises(Refused, match="without an IOMMU's page tables"):
        await stage.toolstack.attach_pci(without.id, CARD)
    await stage.toolstack.attach_pci(second.id, CARD)
    for _ in range(2):
        await stage.toolstack.detach_pci(second.id, CARD)
    assert await stage.pci_functions(second.id) == []


async def test_pci_functions_without_an_iommu_are_refused(stage: Stage) -> None:
    await settings(stage, pci=(CARD,))
    info = await stage.create(passthrough=True)
    with pytest.raises(Refused, match="no IOMMU"):
        await stage.toolstack.attach_pci(info.id, CARD)
