"""Runs one suite on a toolstack: ``--toolstack=fake`` (default), or ``libxl`` in a Xen dom0."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.images import busybox
from tests.support.protect.pod_network import PodNetwork
from tests.support.protect.stage import FakeStage, LibxlStage, Stage

IN_DOM0 = os.path.exists("/proc/xen/capabilities")


@pytest.fixture
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    """A started toolstack with the needs of the suite; no leftovers are allowed at the end."""
    name = request.config.getoption("toolstack")
    if os.geteuid() != 0:
        pytest.skip("needs root")
    stage: Stage
    if name == "libxl":
        if not IN_DOM0:
            pytest.skip("runs in a Xen dom0 (make test-xen boots one)")
        stage = LibxlStage(tmp_path)
    else:
        stage = FakeStage(tmp_path)
    if not (stage.guest_dir / "root/init").exists():
        pytest.skip("needs the guest parts (make zone)")
    await stage.open()
    try:
        yield stage
    finally:
        await stage.close()


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two file systems with different contents of ``/marker``."""
    folder = tmp_path_factory.mktemp("images")
    made = []
    for name in ("one", "two"):
        scratch = folder / name
        scratch.mkdir()
        (scratch / "marker").write_text(f"{name}\n")
        made.append(busybox.build(folder / f"{name}.squashfs", scratch))
    return made[0], made[1]


@pytest.fixture
def pod_network() -> Iterator[PodNetwork]:
    """A pod's network namespace with an interface as CNI would make it, and a peer to ping from."""
    with PodNetwork() as network:
        yield network
