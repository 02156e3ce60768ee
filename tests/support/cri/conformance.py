"""A node that is tested only through CRI, on either toolstack."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from tests.support.cri.cri_daemons import IMAGE, CriNode
from tests.support.observe import audited
from tests.support.observe.call_record import PLANTED, PULLED_AS
from tests.support.protect.agent_crash import crash_agent
from tests.support.waiting import until
from tools.localnode import images, layers, registry
from tools.localnode.cri_client import Client, Pod
from tools.localnode.images import PushedImage
from tools.localnode.layers import LayerEntry
from xenpod_proto.cri.v1 import runtime_pb2 as cri

PATIENCE = 300.0
"""Seconds to wait for anything; software emulation is slow."""
OWN = cri.NamespaceOption(pid=cri.CONTAINER)
"""The namespaces that the kubelet asks for by default."""
FOREVER = "exec sleep 100000"

_ACCOUNTS = layers.layer(
    LayerEntry("etc"),
    LayerEntry("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nweb:x:101:102::/srv/web:/bin/sh\n"),
    LayerEntry("etc/group", 0o644, b"root:x:0:\nweb:x:102:\nwww:x:103:web\n"),
)


class Ends:
    """Notes the end of every container by GetContainerEvents, while the block runs."""

    def __init__(self, client: Client) -> None:
        self._call: Any = client.runtime.GetContainerEvents(cri.GetEventsRequest())
        self._ends: dict[str, asyncio.Event] = {}
        self._listening = asyncio.ensure_future(self._listen())

    async def of(self, container: str) -> None:
        """Wait until the container has ended."""
        end = asyncio.ensure_future(self._ends.setdefault(container, asyncio.Event()).wait())
        done, _ = await asyncio.wait(
            [end, self._listening], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED
        )
        end.cancel()
        if self._listening in done:
            self._listening.result()
        if end not in done:
            raise AssertionError(f"no STOPPED event of {container}")

    async def close(self) -> None:
        self._call.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen(self) -> None:
        async for event in self._call:
            if event.container_event_type == cri.CONTAINER_STOPPED_EVENT:
                self._ends.setdefault(event.container_id, asyncio.Event()).set()


@dataclass
class Stage:
    """A node with an image; containers are removed after their test."""

    node: CriNode
    client: Client
    image: str
    ends: Ends
    toolstack: str
    made: list[str] = field(default_factory=list)

    @property
    def runtime(self) -> Any:
        """The RuntimeService stub."""
        return self.client.runtime

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

    async def create(self, pod: Pod, script: str = FOREVER, **fields: Any) -> str:
        """CreateContainer of a shell script; ``fields`` are ContainerConfig's."""
        name = f"c-{uuid.uuid4()}"
        fields.setdefault("metadata", cri.ContainerMetadata(name=name))
        fields.setdefault("image", cri.ImageSpec(image=self.image))
        fields.setdefault("command", ["sh", "-c", script])
        fields.setdefault("log_path", f"{name}.log")
        fields.setdefault("linux", linux())
        fields.setdefault("envs", [cri.KeyValue(key="PLANTED", value=PLANTED.encode())])
        request = cri.CreateContainerRequest(
            pod_sandbox_id=pod.id, config=cri.ContainerConfig(**fields), sandbox_config=pod.config
        )
        container = str((await self.runtime.CreateContainer(request, timeout=PATIENCE)).container_id)
        self.made.append(container)
        return container

    async def started(self, pod: Pod, script: str = FOREVER, **fields: Any) -> str:
        container = await self.create(pod, script, **fields)
        await self.client.start(container)
        return container

    async def status(self, container: str) -> cri.ContainerStatus:
        request = cri.ContainerStatusRequest(container_id=container)
        reply = await self.runtime.ContainerStatus(request, timeout=PATIENCE)
        return cast(cri.ContainerStatusResponse, reply).status

    async def ended(self, container: str) -> cri.ContainerStatus:
        """Wait for the container's end: its status."""
        await self.ends.of(container)
        status = await self.status(container)
        assert status.state == cri.CONTAINER_EXITED
        return status

    async def says(self, container: str, script: str) -> tuple[int, str]:
        """Exit code and both outputs of a script in the container."""
        reply = await self.client.exec(container, "sh", "-c", script)
        return reply.exit_code, (reply.stdout + reply.stderr).decode().strip()

    async def output(self, container: str, script: str) -> str:
        """The output of a script, which must succeed."""
        code, text = await self.says(container, script)
        assert code == 0, text
        return text

    async def logged(self, container: str, text: str) -> list[str]:
        """``stream tag text`` of each line of its log, once ``text`` is in one of them."""
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
        """Remove what the test has made."""
        while self.made:
            await self.client.remove_container(self.made.pop())

    async def crash(self, pod: Pod) -> None:
        """The kernel of the pod's zone panics; on the fake its agent crashes."""
        if self.toolstack == "libxl":
            await asyncio.to_thread(_panic, _named(pod))
        else:
            crash_zone(self.node, pod)


def _named(pod: Pod) -> str:
    """What of its domain's name is the pod's: it is namespace-name.random."""
    return f"-{pod.config.metadata.name}."


def zone_folder(node: CriNode, pod: Pod) -> Path:
    """What the fake keeps of a pod's zone."""
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
    """The block's RPC must be refused with this code, and a text that has these words."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        yield
    text = raised.value.details() or ""
    assert raised.value.code().name == code, text
    assert all(word in text for word in words), text


@contextlib.asynccontextmanager
async def staged(folder: Path, toolstack: str) -> AsyncIterator[Stage]:
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
    await node.start()
    try:
        async with registry.serve_registry(folder / "registry") as address, node.client() as client:
            image = PushedImage([layers.busybox(), _ACCOUNTS], {"Cmd": ["sh"], "Env": ["FROM_IMAGE=yes"]})
            images.push(address, IMAGE.partition("/")[2], image)
            registry.mirror(node.certs, IMAGE.partition("/")[0], address)
            ends = Ends(client)
            yield Stage(node, client, await _pull(client), ends, toolstack)
            await ends.close()
            await audited.node_agrees(node, PLANTED, PULLED_AS)
    finally:
        await node.close()
    await until(lambda: not node.leftovers(), PATIENCE, node.leftovers)


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
