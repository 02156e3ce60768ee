"""crictl, unmodified, against the running daemons: every command of a pod's life."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cri.cri_daemons import IMAGE, CriNode, needs_node, pulled

pytestmark = [
    pytest.mark.root,
    needs_node,
    pytest.mark.skipif(shutil.which("crictl") is None, reason="crictl is not on PATH"),
]


PIPE = asyncio.subprocess.PIPE


@dataclass
class Crictl:
    """Runs crictl; each command must succeed."""

    node: CriNode

    def line(self, *arguments: str) -> list[str]:
        endpoint = f"unix://{self.node.daemon.socket}"
        # a config file of the machine must not redirect the test
        config = self.node.folder / "crictl.yaml"
        config.write_text("{}\n")
        return ["crictl", "-c", str(config), "-r", endpoint, "-i", endpoint, "-t", "120s", *arguments]

    async def __call__(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(*self.line(*arguments), stdout=PIPE, stderr=PIPE)
        stdout, stderr = await process.communicate()
        assert process.returncode == 0, f"{arguments}: {stderr.decode()}{stdout.decode()}"
        return stdout.decode().strip()

    @contextlib.asynccontextmanager
    async def following(self, *arguments: str) -> AsyncIterator[asyncio.StreamReader]:
        """The output of a command that runs until it is killed."""
        process = await asyncio.create_subprocess_exec(*self.line(*arguments), stdout=PIPE)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(120):
                yield process.stdout
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def pod(self, name: str) -> tuple[str, str]:
        """A running pod: its id, and the file of its configuration."""
        metadata = {"name": name, "namespace": "default", "uid": name, "attempt": 0}
        logs = str(self.node.folder / "pod-logs" / name)
        spec = self.file(f"{name}.json", {"metadata": metadata, "log_directory": logs, "linux": {}})
        return await self("runp", spec), spec

    async def started(self, pod: tuple[str, str], script: str) -> str:
        """A container of the pod."""
        container = {
            "metadata": {"name": "main"},
            "image": {"image": IMAGE},
            "command": ["sh", "-c", script],
            "log_path": "main.log",
            "linux": {"resources": {"memory_limit_in_bytes": 32 << 20}},
        }
        made = await self("create", pod[0], self.file("main.json", container), pod[1])
        return await self("start", made)

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
        "RuntimeReady": True, "NetworkReady": True, "HandlersReady": True, "ZoneModePreferred": False,
        "HostPrepared": True,
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
    async with crictl.following("logs", "-f", made) as output:
        assert await output.readline() == b"hello from crictl\n"
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
    await crictl.node.nothing_left()


async def test_followed_log_shows_new_lines(crictl: Crictl) -> None:
    pod = await crictl.pod("talker")
    made = await crictl.started(
        pod, "echo one; while [ ! -e /go ]; do usleep 10000; done; echo two; echo err >&2; sleep 1; exit 3"
    )
    async with crictl.following("logs", "-f", made) as output:
        assert await output.readline() == b"one\n"
        await crictl("exec", "-s", made, "touch", "/go")
        assert await output.readline() == b"two\n"
        assert await output.read() == b"", "it ends with the container"
    assert await crictl("logs", "--tail", "1", made) in ("two", "")
    await crictl("rmp", "-f", pod[0])


async def test_numbers_of_containers_and_pods(crictl: Crictl) -> None:
    pod = await crictl.pod("counted")
    made = await crictl.started(pod, "head -c 4194304 /dev/zero >/held; sleep 100000")
    stats = json.loads(await crictl("statsp", "-o", "json", "--id", pod[0]))["stats"]
    assert stats[0]["attributes"]["id"] == pod[0]
    assert int(stats[0]["linux"]["memory"]["workingSetBytes"]["value"]) > 0
    metrics = json.loads(await crictl("metricsp", "-o", "json"))["podMetrics"]
    (own,) = [one for one in metrics if one["podSandboxId"] == pod[0]]
    (inner,) = own["containerMetrics"]
    names = {one["name"] for one in [*own["metrics"], *inner["metrics"]]}
    described = {one["name"] for one in json.loads(await crictl("metricdescs"))["descriptors"]}
    assert {"container_memory_usage_bytes", "container_network_transmit_bytes_total"} <= names <= described
    assert made[:13] in await crictl("stats")
    assert pod[0][:13] in await crictl("statsp")
    await crictl("rmp", "-f", pod[0])


async def test_crictl_gets_each_event_across_an_update(crictl: Crictl) -> None:
    async with crictl.following("events", "-o", "json") as output:
        pod = await crictl.pod("heard")
        made = await crictl.started(pod, "sleep 100000")
        await crictl(
            "update", "--memory", str(64 << 20), "--cpu-quota", "50000", "--cpu-period", "100000", made
        )
        await crictl("rmp", "-f", pod[0])
        seen = b""
        while seen.count(b"CONTAINER_DELETED_EVENT") < 2:
            line = await output.readline()
            assert line, seen
            seen += line
    kinds = ("CREATED", "STARTED", "STOPPED", "DELETED")
    assert all(seen.count(f"CONTAINER_{kind}_EVENT".encode()) == 2 for kind in kinds), seen
    assert made.encode() in seen


async def test_an_update_is_shown(crictl: Crictl) -> None:
    pod = await crictl.pod("changed")
    made = await crictl.started(pod, "sleep 100000")
    await crictl("update", "--memory", str(64 << 20), made)
    shown = json.loads(await crictl("inspect", made))["status"]["resources"]["linux"]
    assert int(shown["memoryLimitInBytes"]) == 64 << 20
    inspected = json.loads(await crictl("inspectp", pod[0]))
    assert inspected["status"]["state"] == "SANDBOX_READY" and inspected["info"]["zone"] == pod[0]
    assert json.loads(await crictl("inspecti", IMAGE))["status"]["repoTags"] == [IMAGE]
    assert "xenpod" in await crictl("version")
    assert "cgroup" in (await crictl("runtime-config")).lower()
    await crictl("rmp", "-f", pod[0])
