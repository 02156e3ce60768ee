"""The backup and the downgrade of docs/install.md: with the copy a node of the former version works again."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.support.cri.cri_daemons import CriNode, needs_node, pulled
from tests.support.local_run import ROOT
from tests.support.protect.daemons import DaemonFailed
from tools.docgen.blocks import blocks

pytestmark = [pytest.mark.root, needs_node]

ARCHIVE = "/root/xenpod-state.tar.gz"
DATABASES = ("protect/protect.db", "xenpod/cri.db")


def copying() -> str:
    """The page's command that copies; the rest of its block is for systemd."""
    (block,) = [block for block in blocks((ROOT / "docs/install.md").read_text(), "sh") if ARCHIVE in block]
    (line,) = [line for line in block.splitlines() if line.startswith("tar ")]
    return line


async def shell(command: str) -> None:
    process = await asyncio.create_subprocess_shell(command)
    assert await process.wait() == 0


def of_a_later_version(states: Path) -> None:
    for name in DATABASES:
        with contextlib.closing(sqlite3.connect(states / name)) as database:
            database.execute("PRAGMA user_version = 999")


async def runs_a_pod(node: CriNode, image: str) -> None:
    async with node.client() as client:
        pod = await client.run_pod("works")
        container = await client.create(pod, image, ["sleep", "1000"])
        await client.start(container)
        assert (await client.exec(container, "echo", "it works")).stdout == b"it works\n"
        await client.remove_pod(pod.id)


async def test_a_node_goes_back_by_its_copy(tmp_path: Path) -> None:
    root, archive = tmp_path / "host", tmp_path / "copy.tar.gz"
    states = root / "var/lib"
    for name in ("etc/protect", "etc/xenpod", "var/lib/protect", "var/lib/xenpod"):
        (root / name).mkdir(parents=True)
    node = CriNode(tmp_path)
    node.protectd.configure(state_dir=str(states / "protect"))
    node.configure(state_dir=str(states / "xenpod"))
    try:
        await node.start()
        async with pulled(node, tmp_path / "registry") as image:
            await runs_a_pod(node, image)
            await node.daemon.stop()
            await node.protectd.daemon.stop()
            await shell(copying().replace("-C /", f"-C {root}", 1).replace(ARCHIVE, str(archive)))

            of_a_later_version(states)
            for daemon in (node.protectd.daemon, node.daemon):
                with pytest.raises(DaemonFailed):
                    await daemon.start()
            shutil.rmtree(states)
            await shell(f"tar -C {root} -xzf {archive}")
            assert all((states / name).exists() for name in DATABASES)
            await node.start()
        async with pulled(node, tmp_path / "registry") as image:
            await runs_a_pod(node, image)
        await node.nothing_left()
    finally:
        await node.close()
