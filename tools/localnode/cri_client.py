"""A small CRI client on the gRPC stubs, for the demo, the benchmark and tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import grpc.aio

from daemonkit.rpc.channels import channel
from xenpod_proto.cri.v1 import runtime_pb2 as pb
from xenpod_proto.cri.v1.runtime_pb2_grpc import ImageServiceStub, RuntimeServiceStub

_TIMEOUT_SECONDS = 120.0
# The kubelet's default: each container has its own process ids.
_NAMESPACES = pb.NamespaceOption(pid=pb.CONTAINER)


@dataclass(frozen=True, slots=True)
class Pod:
    """A running pod sandbox."""

    id: str
    config: pb.PodSandboxConfig


class Client:
    """A client of one CRI endpoint."""

    def __init__(self, link: grpc.aio.Channel, logs: Path, timeout: float = _TIMEOUT_SECONDS) -> None:
        self.runtime = RuntimeServiceStub(link)
        self.image = ImageServiceStub(link)
        self._logs = logs
        self._timeout = timeout

    async def pull(self, name: str, namespace: str = "") -> str:
        """Pull an image; returns its reference, for ``create``; ``namespace``: of the waiting pod."""
        request = pb.PullImageRequest(image=pb.ImageSpec(image=name))
        if namespace:
            request.sandbox_config.metadata.namespace = namespace
        return (await self.image.PullImage(request, timeout=self._timeout)).image_ref

    async def remove_image(self, name: str) -> None:
        request = pb.RemoveImageRequest(image=pb.ImageSpec(image=name))
        await self.image.RemoveImage(request, timeout=self._timeout)

    async def run_pod(
        self, name: str, cgroup_parent: str = "", cpu_shares: int = 0, namespace: str = "default"
    ) -> Pod:
        """RunPodSandbox with its own log directory; ``cpu_shares``: the kubelet's sum."""
        uid = str(uuid4())
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=uid, namespace=namespace),
            hostname=name,
            log_directory=str(self._logs / uid),
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=cgroup_parent,
                resources=pb.LinuxContainerResources(cpu_shares=cpu_shares) if cpu_shares else None,
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=_NAMESPACES),
            ),
        )
        request = pb.RunPodSandboxRequest(config=config)
        reply = await self.runtime.RunPodSandbox(request, timeout=self._timeout)
        return Pod(reply.pod_sandbox_id, config)

    async def create(
        self,
        pod: Pod,
        image: str,
        command: Sequence[str],
        name: str = "main",
        mounts: Sequence[pb.Mount] = (),
    ) -> str:
        """CreateContainer: the container's id."""
        request = pb.CreateContainerRequest(
            pod_sandbox_id=pod.id,
            sandbox_config=pod.config,
            config=pb.ContainerConfig(
                metadata=pb.ContainerMetadata(name=name),
                image=pb.ImageSpec(image=image),
                command=command,
                mounts=mounts,
                log_path=f"{name}.log",
                linux=pb.LinuxContainerConfig(
                    security_context=pb.LinuxContainerSecurityContext(namespace_options=_NAMESPACES)
                ),
            ),
        )
        return (await self.runtime.CreateContainer(request, timeout=self._timeout)).container_id

    async def start(self, container: str) -> None:
        request = pb.StartContainerRequest(container_id=container)
        await self.runtime.StartContainer(request, timeout=self._timeout)

    async def exec(self, container: str, *command: str) -> pb.ExecSyncResponse:
        """Run a command to its end: exit code and output."""
        request = pb.ExecSyncRequest(container_id=container, cmd=command, timeout=60)
        return await self.runtime.ExecSync(request, timeout=self._timeout)

    async def remove_container(self, container: str) -> None:
        """Stop the container at once, and remove it."""
        stop = pb.StopContainerRequest(container_id=container, timeout=0)
        await self.runtime.StopContainer(stop, timeout=self._timeout)
        remove = pb.RemoveContainerRequest(container_id=container)
        await self.runtime.RemoveContainer(remove, timeout=self._timeout)

    async def remove_pod(self, sandbox: str) -> None:
        """Stop the pod, and remove it with its containers."""
        await self.runtime.StopPodSandbox(
            pb.StopPodSandboxRequest(pod_sandbox_id=sandbox), timeout=self._timeout
        )
        await self.runtime.RemovePodSandbox(
            pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox), timeout=self._timeout
        )

    async def pods(self) -> list[str]:
        """List the ids of all sandboxes."""
        reply = await self.runtime.ListPodSandbox(pb.ListPodSandboxRequest(), timeout=self._timeout)
        return [item.id for item in reply.items]

    def log(self, pod: Pod, name: str = "main") -> Path:
        """The container's CRI log file."""
        return Path(pod.config.log_directory) / f"{name}.log"


@contextlib.asynccontextmanager
async def connect_client(socket: Path, logs: Path) -> AsyncIterator[Client]:
    """Connect to the endpoint at ``socket``; the client's pods log under ``logs``."""
    async with channel(socket) as link:
        yield Client(link, logs)
