"""A node of two runtimes: our daemons on the fake toolstack, with a containerd behind xenpod-cri."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc.aio

from tests.support.cluster.cgroups import control_group
from tests.support.cri.cri_daemons import IMAGE, CriNode
from tests.support.delegate.containerd import Containerd, Surroundings, containerd
from tools.localnode import images, layers, registry
from tools.localnode.cri_client import Client, Pod
from xenpod_proto.cri.v1 import runtime_pb2 as cri

PAUSE = "registry.test/pause:1"
HOST, ZONE = "runc", "xenpod"
"""The runtime handlers of the two kinds of pod: containers of the host, and zones."""
KINDS = (HOST, ZONE)
PATIENCE = 120.0
FOREVER = "exec sleep 100000"
_OWN = cri.NamespaceOption(pid=cri.CONTAINER)
"""The kubelet's default namespaces."""


def programs() -> Path | None:
    """The folder of a containerd other than the installed containerd, from XENPOD_CONTAINERD."""
    named = os.environ.get("XENPOD_CONTAINERD")
    return Path(named) if named else None


@dataclass
class Mixed:
    """Both runtimes, started, with a client of each."""

    node: CriNode
    delegate: Containerd
    client: Client
    """The client of xenpod-cri."""
    direct: Client
    """The client of containerd, past xenpod-cri."""
    images: dict[str, str]
    """The image's reference for CreateContainer, by the pod's kind."""
    cgroup: str

    @property
    def runtime(self) -> Any:
        """xenpod-cri's RuntimeService."""
        return self.client.runtime

    async def pod(self, name: str, kind: str, **fields: Any) -> Pod:
        """RunPodSandbox with the kind's handler; ``fields`` are PodSandboxConfig's."""
        uid = str(uuid4())
        namespaces = cri.LinuxSandboxSecurityContext(namespace_options=_OWN)
        # Without a group for the pod containerd has no statistics of it.
        parent = f"{self.cgroup}/{uid}" if kind == HOST else ""
        config: dict[str, Any] = {
            "metadata": cri.PodSandboxMetadata(name=name, uid=uid, namespace="default"),
            "hostname": name,
            "labels": {"kind": kind, "app": "web"},
            "log_directory": str(self.node.logs / uid),
            "linux": cri.LinuxPodSandboxConfig(cgroup_parent=parent, security_context=namespaces),
        }
        asked = cri.PodSandboxConfig(**(config | fields))
        request = cri.RunPodSandboxRequest(config=asked, runtime_handler=kind)
        reply = await self.runtime.RunPodSandbox(request, timeout=PATIENCE)
        return Pod(reply.pod_sandbox_id, asked)

    async def created(self, pod: Pod, script: str = FOREVER, **fields: Any) -> str:
        """CreateContainer of a shell script; ``fields`` are ContainerConfig's."""
        kind = pod.config.labels["kind"]
        name = str(fields.pop("name", "main"))
        security = cri.LinuxContainerSecurityContext(namespace_options=_OWN)
        config: dict[str, Any] = {
            "metadata": cri.ContainerMetadata(name=name),
            "image": cri.ImageSpec(image=self.images[kind]),
            "command": ["sh", "-c", script],
            "labels": {"kind": kind, "app": "web"},
            "log_path": f"{name}.log",
            "linux": cri.LinuxContainerConfig(security_context=security),
        }
        asked = cri.ContainerConfig(**(config | fields))
        request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=asked, sandbox_config=pod.config)
        return str((await self.runtime.CreateContainer(request, timeout=PATIENCE)).container_id)

    async def started(self, pod: Pod, script: str = FOREVER, **fields: Any) -> str:
        container = await self.created(pod, script, **fields)
        await self.client.start(container)
        return container

    async def pods(self, **filters: Any) -> list[str]:
        """List the ids of pods, in the order of ListPodSandbox."""
        request = cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(**filters))
        return [one.id for one in (await self.runtime.ListPodSandbox(request, timeout=PATIENCE)).items]

    async def containers(self, **filters: Any) -> list[str]:
        """List the ids of containers, in the order of ListContainers."""
        request = cri.ListContainersRequest(filter=cri.ContainerFilter(**filters))
        return [one.id for one in (await self.runtime.ListContainers(request, timeout=PATIENCE)).containers]

    async def status(self, container: str) -> cri.ContainerStatus:
        request = cri.ContainerStatusRequest(container_id=container)
        reply: cri.ContainerStatusResponse = await self.runtime.ContainerStatus(request, timeout=PATIENCE)
        return reply.status

    async def address(self, pod: Pod) -> str:
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod.id)
        reply: cri.PodSandboxStatusResponse = await self.runtime.PodSandboxStatus(request, timeout=PATIENCE)
        return reply.status.network.ip

    async def output(self, container: str, script: str) -> str:
        """The output of a script in the container, which must succeed."""
        reply = await self.client.exec(container, "sh", "-c", script)
        assert reply.exit_code == 0, reply.stderr
        return reply.stdout.decode().strip()

    def crictl(self, *arguments: str) -> list[str]:
        """The command line of a crictl that talks to xenpod-cri."""
        endpoint = f"unix://{self.node.daemon.socket}"
        # A config file of the machine must not redirect the test.
        config = self.node.folder / "crictl.yaml"
        config.write_text(json.dumps({}))
        return ["crictl", "-c", str(config), "-r", endpoint, "-i", endpoint, "-t", "120s", *arguments]

    async def tidy(self) -> None:
        """Remove every pod of both kinds."""
        for pod in await self.pods():
            await self.client.remove_pod(pod)


async def can(call: Any) -> bool:
    """Whether a runtime has the RPC at all."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return False
        raise
    return True


@dataclass(frozen=True)
class TwoRuntimes:
    """Both runtimes, started, with one network and one registry."""

    node: CriNode
    delegate: Containerd
    cgroup: str
    """The control group for pods of the host."""
    registry: str
    """The address of the registry."""


@contextlib.asynccontextmanager
async def two_runtimes(
    folder: Path, node: CriNode, *, default: str, **settings: Any
) -> AsyncIterator[TwoRuntimes]:
    """Start a containerd and, in front of it, a node; everything is removed at the end.

    ``default``: the runtime of pods that name no handler; ``settings``: more of cri.toml.
    """
    delegate = containerd(folder / "d", Surroundings(PAUSE, node.certs, node.conf_dir, programs()))
    node.configure(
        delegate={
            "endpoint": f"unix://{delegate.socket}",
            "default": default,
            "namespaces": ["kube-system", "default"],
        },
        **settings,
    )
    async with contextlib.AsyncExitStack() as stack:
        cgroup = stack.enter_context(control_group(folder))
        stack.push_async_callback(node.nothing_left)
        stack.push_async_callback(delegate.close)
        stack.push_async_callback(node.close)
        address = await stack.enter_async_context(registry.serve_registry(folder / "registry"))
        push(address, folder)
        registry.mirror(node.certs, IMAGE.partition("/")[0], address)
        await delegate.start()
        stack.push_async_callback(delegate.revive)
        await node.start()
        yield TwoRuntimes(node, delegate, cgroup, address)


@contextlib.asynccontextmanager
async def mixed(folder: Path, *, default: str = "xenpod") -> AsyncIterator[Mixed]:
    """Start both runtimes, with a client of each; see ``two_runtimes``."""
    async with (
        two_runtimes(folder, CriNode(folder), default=default) as both,
        both.node.client() as client,
        both.delegate.client() as direct,
    ):
        pulled = {ZONE: await client.pull(IMAGE), HOST: await direct.pull(IMAGE)}
        yield Mixed(both.node, both.delegate, client, direct, pulled, both.cgroup)


def push(address: str, folder: Path) -> None:
    """Push the test's image and the pause image to a registry."""
    images.push(address, IMAGE.partition("/")[2], images.busybox())
    program = images.PushedImage([layers.pause(folder)], {"Entrypoint": ["/pause"]})
    images.push(address, PAUSE.partition("/")[2], program)
