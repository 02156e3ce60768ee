"""A node that is tested only through CRI, on either toolstack."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_daemons import IMAGE, CriNode
from tests.support.cri.events import PATIENCE, Ends
from tests.support.cri.stage import FOREVER, Stage, running
from tests.support.observe import audited
from tests.support.observe.call_record import PLANTED, PULLED_AS
from tests.support.protect.agent_crash import crash_agent
from tests.support.waiting import until
from tools.localnode import images, layers, registry
from tools.localnode.cri_client import Client, Pod
from tools.localnode.images import PushedImage
from tools.localnode.layers import LayerEntry
from xenpod_proto.cri.v1 import runtime_pb2 as cri

OWN = cri.NamespaceOption(pid=cri.CONTAINER)
"""The kubelet's default namespaces."""

_ACCOUNTS = layers.layer(
    LayerEntry("etc"),
    LayerEntry("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nweb:x:101:102::/srv/web:/bin/sh\n"),
    LayerEntry("etc/group", 0o644, b"root:x:0:\nweb:x:102:\nwww:x:103:web\n"),
)


@dataclass
class SuiteStage(Stage):
    """A node for the whole suite; containers are removed after their test."""

    patience: ClassVar[float] = PATIENCE
    ends: Ends
    toolstack: str
    made: list[str] = field(default_factory=list)

    async def run_pod(self, name: str = "pod", handler: str = "", **fields: Any) -> Pod:
        """RunPodSandbox; ``fields`` are PodSandboxConfig's."""
        uid = str(uuid.uuid4())
        metadata = cri.PodSandboxMetadata(name=name, namespace="default", uid=uid)
        logs = str(self.node.logs / uid)
        own: dict[str, Any] = {"metadata": metadata, "hostname": name, "log_directory": logs}
        config = cri.PodSandboxConfig(**(own | fields))
        request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
        reply = await self.runtime.RunPodSandbox(request, timeout=PATIENCE)
        return Pod(reply.pod_sandbox_id, config)

    @contextlib.asynccontextmanager
    async def pod(self, name: str = "pod", **fields: Any) -> AsyncIterator[Pod]:
        """A pod that is removed at the end of the block."""
        pod = await self.run_pod(name, **fields)
        try:
            yield pod
        finally:
            await self.client.remove_pod(pod.id)

    def default_name(self) -> str:
        return f"c-{uuid.uuid4()}"

    async def create(self, pod: Pod, script: str = FOREVER, name: str = "", **fields: Any) -> str:
        """CreateContainer with the kubelet's namespaces; the container is removed after the test."""
        fields.setdefault("linux", linux())
        fields.setdefault("envs", [cri.KeyValue(key="PLANTED", value=PLANTED.encode())])
        container = await super().create(pod, script, name, **fields)
        self.made.append(container)
        return container

    async def ended(self, container: str) -> cri.ContainerStatus:
        """Wait for the container's end: its status."""
        await self.ends.of(container)
        status = await self.status(container)
        assert status.state == cri.CONTAINER_EXITED
        return status

    async def logged(self, container: str, text: str) -> list[str]:
        """``stream tag text`` of each line of the container's log, once ``text`` is in a line."""
        path = Path((await self.status(container)).log_path)
        seen = ""

        def there() -> bool:
            nonlocal seen
            seen = path.read_text() if path.exists() else ""
            # A line that is being written may be seen in part.
            return seen.endswith("\n") and any(text in line for line in seen.splitlines())

        await until(there, PATIENCE, lambda: seen or "no log")
        return [line.split(" ", 1)[1] for line in seen.splitlines()]

    async def tidy(self) -> None:
        """Remove the containers of the test."""
        while self.made:
            await self.client.remove_container(self.made.pop())

    async def crash(self, pod: Pod) -> None:
        """The kernel of the pod's zone panics; on the fake its agent crashes."""
        if self.toolstack == "libxl":
            await asyncio.to_thread(_panic, _named(pod))
        else:
            crash_zone(self.node, pod)


def _named(pod: Pod) -> str:
    """The pod's part of its domain's name, which is namespace-name.random."""
    return f"-{pod.config.metadata.name}."


def zone_folder(node: CriNode, pod: Pod) -> Path:
    """The fake's folder for a pod's zone."""
    specs = (node.protectd.run_dir / "fake" / "domains").glob("*/spec.json")
    (folder,) = [spec.parent for spec in specs if _named(pod) in spec.read_text()]
    return folder


def crash_zone(node: CriNode, pod: Pod) -> None:
    """Crash the agent of a pod's zone on the fake."""
    folder = zone_folder(node, pod)
    crash_agent(int((folder / "pid").read_text().split()[0]), folder)


def linux(resources: cri.LinuxContainerResources | None = None, **security: Any) -> cri.LinuxContainerConfig:
    """The Linux configuration of a container, with the kubelet's namespaces unless others are named."""
    security.setdefault("namespace_options", OWN)
    context = cri.LinuxContainerSecurityContext(**security)
    return cri.LinuxContainerConfig(resources=resources, security_context=context)


@contextlib.contextmanager
def refused(code: str, *words: str) -> Iterator[None]:
    """The block's RPC must fail with this code, and a text with these words."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        yield
    text = raised.value.details() or ""
    assert raised.value.code().name == code, text
    assert all(word in text for word in words), text


@contextlib.asynccontextmanager
async def staged(folder: Path, toolstack: str) -> AsyncIterator[SuiteStage]:
    """Start both daemons; everything is removed at the end, and nothing may be left.

    Their audit logs must then have each call that changed something, and none of the secrets.
    """
    node = CriNode(folder, settings=dict(audited.ON))
    node.protectd.configure(**audited.ON)
    chosen = {"annotations": ["xenpod.dev/memory", "xenpod.dev/kernel"]}
    limits = {"annotations": ["xenpod.dev/ephemeral-storage", "xenpod.dev/empty-dirs"]}
    handlers = {
        "xenpod": chosen,
        "zone": {"host_namespaces": "zone"},
        "scratch": {"scratch_size": "256MiB"} | limits,
    }
    node.configure(kernels={"allow": ["localhost/kernels/*"]}, handlers=handlers)
    # Xen is emulated here, where PV is twice as fast as PVH, the default.  The fake says the same.
    node.protectd.configure(profiles={"default": {"mode": "pv"}})
    if toolstack == "libxl":
        # For crash: Debian's kernels do not take that key from the host otherwise.
        node.protectd.configure(
            toolstack="libxl",
            profiles={"default": {"mode": "pv", "memory": "128MiB"}},
            libxl={"kernel_arguments": "quiet sysrq_always_enabled"},
        )
    async with (
        running(node, PATIENCE),
        registry.serve_registry(folder / "registry") as address,
        node.client() as client,
    ):
        image = PushedImage([layers.busybox(), _ACCOUNTS], {"Cmd": ["sh"], "Env": ["FROM_IMAGE=yes"]})
        images.push(address, IMAGE.partition("/")[2], image)
        registry.mirror(node.certs, IMAGE.partition("/")[0], address)
        ends = Ends(client)
        yield SuiteStage(node, client, await _pull(client), ends, toolstack)
        await ends.close()
        await audited.node_agrees(node, PLANTED, PULLED_AS)


async def _pull(client: Client) -> str:
    """Pull the image with a password, which the registry does not ask for."""
    auth = cri.AuthConfig(username=PULLED_AS, password=PLANTED)
    request = cri.PullImageRequest(image=cri.ImageSpec(image=IMAGE), auth=auth)
    return str((await client.image.PullImage(request, timeout=PATIENCE)).image_ref)


def _panic(name: str) -> None:
    listed = subprocess.run(["xl", "list"], check=True, capture_output=True, text=True, timeout=PATIENCE)
    rows = [line.split() for line in listed.stdout.splitlines()[1:]]
    (domid,) = [row[1] for row in rows if name in row[0]]
    subprocess.run(["xl", "sysrq", domid, "c"], check=True, timeout=PATIENCE)
