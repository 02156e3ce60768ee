"""crictl, unmodified, against the running daemons: every command of a pod's life."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cri_daemons import IMAGE, CriNode, needs_node, pulled

pytestmark = [
    pytest.mark.root,
    needs_node,
    pytest.mark.skipif(shutil.which("crictl") is None, reason="crictl is not on PATH"),
]


@dataclass
class Crictl:
    """Runs crictl; each command must succeed."""

    node: CriNode

    async def __call__(self, *arguments: str) -> str:
        endpoint = f"unix://{self.node.daemon.socket}"
        # a config file of the machine must not redirect the test
        config = self.node.folder / "crictl.yaml"
        config.write_text("{}\n")
        line = ("crictl", "-c", str(config), "-r", endpoint, "-i", endpoint, "-t", "30s", *arguments)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*line, stdout=pipe, stderr=pipe)
        stdout, stderr = await process.communicate()
        assert process.returncode == 0, f"{arguments}: {stderr.decode()}{stdout.decode()}"
        return stdout.decode().strip()

    def file(self, name: str, content: object) -> str:
        path = self.node.folder / name
        path.write_text(json.dumps(content))
        return str(path)


@pytest.fixture
async def crictl(tmp_path: Path) -> AsyncIterator[Crictl]:
    node = CriNode(tmp_path)
    await node.start()
    try:
        async with pulled(node, tmp_path / "registry"):
            yield Crictl(node)
    finally:
        await node.close()


async def test_the_life_of_a_pod(crictl: Crictl, tmp_path: Path) -> None:
    logs = tmp_path / "pod-logs"
    info = json.loads(await crictl("info"))
    assert {c["type"]: c["status"] for c in info["status"]["conditions"]} == {
        "RuntimeReady": True, "NetworkReady": True,
    }  # fmt: skip
    assert info["toolstack"]["name"] == "fake" and info["toolstack"]["securityBoundary"] is False
    assert info["notices"]
    await crictl("rmi", IMAGE)
    await crictl("pull", IMAGE)
    assert "registry.test/busybox" in await crictl("images")

    sandbox = {
        "metadata": {"name": "tool", "namespace": "default", "uid": "tool-uid", "attempt": 1},
        "log_directory": str(logs),
        "linux": {},
    }
    pod = await crictl("runp", crictl.file("pod.json", sandbox))
    container = {
        "metadata": {"name": "main"},
        "image": {"image": IMAGE},
        "command": ["sh", "-c", "echo hello from crictl; exec sleep 1000"],
        "log_path": "main.log",
        "linux": {},
    }
    spec = crictl.file("container.json", container)
    made = await crictl("create", pod, spec, crictl.file("pod.json", sandbox))
    assert made in await crictl("ps", "-a", "-q", "--no-trunc")
    assert await crictl("start", made) == made
    assert made[:13] in await crictl("ps")
    assert pod[:13] in await crictl("pods")
    assert await crictl("pods", "-q", "--no-trunc", "--state", "ready") == pod
    inspected = json.loads(await crictl("inspect", made))
    assert inspected["status"]["state"] == "CONTAINER_RUNNING"
    assert inspected["info"]["process"]["args"][0] == "sh"
    assert json.loads(await crictl("inspectp", pod))["status"]["network"]["ip"]
    assert await crictl("logs", made) == "hello from crictl"
    assert await crictl("exec", "-s", made, "cat", "/etc/hostname") == "tool"
    assert await crictl("exec", "-s", made[:10], "echo", "short id") == "short id"
    stats = json.loads(await crictl("stats", "-o", "json", made))["stats"][0]
    assert int(stats["memory"]["workingSetBytes"]["value"]) > 0
    await crictl("stop", "-t", "0", made)
    assert json.loads(await crictl("inspect", made))["status"]["exitCode"] == 137
    await crictl("rm", made)
    await crictl("stopp", pod)
    await crictl("rmp", pod)
    assert await crictl("pods", "-q") == "" and await crictl("ps", "-a", "-q") == ""
    assert crictl.node.leftovers() == {}
