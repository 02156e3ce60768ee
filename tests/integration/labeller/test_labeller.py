"""The labeller as a process, beside real daemons on the fake: a file of features, and a Node object."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cri.cri_daemons import CriNode, needs_node
from tests.support.labels.api_server import NAME, OneNode, kubeconfig, serving
from tests.support.protect.daemons import ROOT
from tests.support.waiting import until
from tools.localnode.processes import Output, background

pytestmark = [pytest.mark.root, needs_node]

PATIENCE = 120.0
BASE = {
    "xenpod.dev/toolstack": "fake",
    "xenpod.dev/security-boundary": "false",
    "xenpod.dev/handler.xenpod": "true",
    "xenpod.dev/mode.pv": "true",
    "xenpod.dev/can.pv": "true",
}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[CriNode]:
    made = CriNode(tmp_path / "n")
    await made.start()
    yield made
    await made.close()


def command(node: CriNode, *more: str) -> tuple[str, ...]:
    to, *rest = more
    common = ("--cri-socket", str(node.daemon.socket), "--interval", "1s")
    return (sys.executable, "-m", "cluster.labeller", to, *common, *rest)


async def run(node: CriNode, *more: str) -> tuple[int, str]:
    """Run xenpod-labels to its end: the exit status and the output."""
    process = await asyncio.create_subprocess_exec(
        *command(node, *more), cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


def read(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def known(labels: dict[str, str]) -> dict[str, str]:
    """Independent of this kernel's features."""
    return {key: value for key, value in labels.items() if key != "xenpod.dev/user-namespaces"}


async def test_file_of_features_follows_the_node(node: CriNode, tmp_path: Path) -> None:
    folder, output = tmp_path / "features.d", Output(tmp_path / "labels.log")
    path = folder / "xenpod"

    async def becomes(wanted: dict[str, str]) -> None:
        await until(lambda: known(read(path)) == wanted, PATIENCE, lambda: (read(path), output.tail()))

    started = background(*command(node, "nfd", "--directory", str(folder)), output=output, folder=ROOT)
    async with started as process:
        await becomes(BASE)
        await node.daemon.stop()
        # The node's features are unknown: the labels stay.
        await output.line_with("[UNAVAILABLE]", PATIENCE)
        assert known(read(path)) == BASE
        node.configure(handlers={"fast": {}})
        await node.daemon.start()
        await becomes(BASE | {"xenpod.dev/handler.fast": "true"})
        await node.daemon.stop()
        node.configure(handlers={})
        await node.daemon.start()
        await becomes(BASE)
        await node.protectd.daemon.stop()
        await output.line_with("read what this node can do: protectd does not answer", PATIENCE)
        assert known(read(path)) == BASE
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
    assert known(read(path)) == BASE
    assert (await run(node, "nfd", "--directory", str(folder), "--remove"))[0] == 0
    assert list(folder.iterdir()) == []


async def test_a_node_object_has_them_until_they_are_removed(node: CriNode, tmp_path: Path) -> None:
    there = OneNode({"kubernetes.io/os": "linux", "xenpod.dev/handler.gone": "true"})
    with serving(there) as url:
        to = ("node", "--name", NAME, "--kubeconfig", str(kubeconfig(tmp_path / "kubeconfig", url)))
        status, said = await run(node, *to, "--once")
        assert status == 0, said
        assert known(there.labels) == {"kubernetes.io/os": "linux", **BASE}
        await node.daemon.stop()
        status, said = await run(node, *to, "--once")
        assert status == 1 and f"ask for the status at {node.daemon.socket}" in said
        assert known(there.labels) == {"kubernetes.io/os": "linux", **BASE}
        assert (await run(node, *to, "--remove"))[0] == 0
        assert there.labels == {"kubernetes.io/os": "linux"}
