"""Kernels from images: on Xen a pod chooses a kernel; the fake, whose zones have no kernel, refuses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from protectctl.__main__ import main
from tests.support.agent.zone import ZONE
from tests.support.cri.conformance import SuiteStage, refused
from tests.support.cri.cri_daemons import needs_node

pytestmark = [pytest.mark.root, needs_node, pytest.mark.asyncio(loop_scope="session")]
NAME = "localhost/kernels/debian:1"
CHOICE = {"xenpod.dev/kernel": NAME}


async def _protect(stage: SuiteStage, *arguments: str) -> None:
    words = ["image", arguments[0], "--cri-socket", str(stage.node.daemon.socket), *arguments[1:]]
    assert await asyncio.to_thread(main, words) == 0


async def test_pod_boots_its_chosen_kernel_or_is_refused(
    stage: SuiteStage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = [path for path in Path("/boot").glob("vmlinuz-*-amd64") if "cloud" not in path.name]
    if not kernels:
        pytest.skip("needs a kernel with 9p (apt-get install linux-image-amd64)")
    version = kernels[-1].name.removeprefix("vmlinuz-")
    made = tmp_path / "kernel.tar"
    tool = [sys.executable, "kernelimage.py", "--kernel", version, "--name", NAME, "--output", str(made)]
    await asyncio.to_thread(subprocess.run, tool, cwd=ZONE, check=True)
    with refused("NOT_FOUND", "protect image pull", NAME):
        await stage.run_pod("absent", annotations=CHOICE)
    with refused("PERMISSION_DENIED", "kernels.allow"):
        await stage.run_pod("other", annotations={"xenpod.dev/kernel": "localhost/other:1"})
    await _protect(stage, "import", str(made))
    try:
        if stage.toolstack == "fake":
            with refused("FAILED_PRECONDITION", "share the host's kernel", NAME):
                await stage.run_pod("fake", annotations=CHOICE)
        else:
            await _boots(stage, version, capsys)
    finally:
        await stage.client.remove_image(NAME)
    assert list((stage.node.folder / "state/images/kernels").iterdir()) == []


async def _boots(stage: SuiteStage, version: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with stage.pod("chooses", annotations=CHOICE) as pod:
        container = await stage.started(pod)
        assert await stage.output(container, "cat /proc/sys/kernel/osrelease") == version
        capsys.readouterr()
        await _protect(stage, "list-kernels", "--output", "json")
        (listed,) = json.loads(capsys.readouterr().out)["kernels"]
        assert (listed["image"]["zones"], listed["taken_out"]) == ([pod.id], True)
        # Removed, and still there.
        await _protect(stage, "remove", NAME)
        assert len(list((stage.node.folder / "state/images/kernels").iterdir())) == 1
        assert await stage.output(container, "cat /proc/sys/kernel/osrelease") == version
