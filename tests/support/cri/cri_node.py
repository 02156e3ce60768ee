"""A whole xenpod-cri in this process, over a protect.v1 in memory, with its own network and images."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc.aio

from cri.assembly import CriDaemon
from cri.cni import pod
from cri.config import ANNOTATIONS, CniConfig, CriConfig, HandlerConfig, HostNamespaces
from cri.daemon import delegation, running_daemon
from cri.oci.values import RootImage
from cri.state.attachment import UNLIMITED, Attachment, BandwidthLimits, Chain, Plugin
from cri.stats.rates import Rates
from cri.streaming.server import serving_streams as streaming_server
from daemonkit.faults import Fault, Missing
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from tests.support.cri.fake_protect import FakeProtect, serving
from tests.support.protect.daemons import GUEST
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc as rpc
from xenpod_proto.protect.v1 import protect_pb2 as pb

PLUGIN = Plugin("bridge", {"type": "bridge"}, frozenset({"portMappings"}))
CHAIN = Chain("test", "1.0.0", (PLUGIN,), "10-test")
IMAGE = RootImage(
    id="sha256:" + "1" * 64,
    reference="localhost/busybox@sha256:" + "2" * 64,
    name="localhost/busybox:1",
    filesystems=("/images/busybox.squashfs", "/images/busybox-2.squashfs"),
    type="squashfs",
    env=("PATH=/bin", "FROM_IMAGE=yes"),
    entrypoint=(),
    cmd=("sh",),
    working_dir="/",
    passwd="root:x:0:0:root:/root:/bin/sh\nweb:x:101:102::/srv:/bin/false\n",
    group="root:x:0:\nwww:x:103:web\n",
)


class FakeNetwork:
    """Gives each pod the next address; remembers who is attached."""

    def __init__(self) -> None:
        self.attached: dict[str, Attachment] = {}
        self.trouble: Fault | None = None
        self.failure: Fault | None = None
        self.detach_failure: Fault | None = None
        self._count = 0

    def check(self) -> Chain:
        if self.trouble:
            raise self.trouble
        return CHAIN

    def plan(
        self, sandbox_id: str, config: cri.PodSandboxConfig, most: BandwidthLimits = UNLIMITED
    ) -> Attachment:
        return pod.attachment(sandbox_id, config, self.check(), Path("/run/netns") / sandbox_id, most)

    async def attach(self, attachment: Attachment, made: Callable[[], None] = lambda: None) -> Attachment:
        self.attached[attachment.container_id] = attachment
        if self.failure:
            raise self.failure
        made()
        self._count += 1
        return replace(attachment, result={"ips": []}, addresses=(f"10.0.0.{self._count}", "fd00::1"))

    async def detach(self, attachment: Attachment) -> None:
        if self.detach_failure:
            raise self.detach_failure
        self.attached.pop(attachment.container_id, None)


class FakeImages:
    """One image for roots, and further images for volumes."""

    def __init__(self) -> None:
        self.held: dict[str, set[str]] = {}
        self.mended: list[list[str]] = []
        self.beyond_repair: Fault | None = None
        self.image = IMAGE
        self.others: dict[str, RootImage] = {}

    def resolve(self, reference: str) -> RootImage:
        if reference in self.others:
            return self.others[reference]
        if reference not in (self.image.id, self.image.reference, "busybox"):
            raise Missing("find image", reference, "not here", "pull it first")
        return self.image

    async def mend(self, references: Sequence[str]) -> None:
        self.mended.append(list(references))
        if self.beyond_repair is not None:
            raise self.beyond_repair

    def hold(self, image_id: str, container_id: str) -> None:
        self.held.setdefault(container_id, set()).add(image_id)

    def release(self, container_id: str) -> None:
        self.held.pop(container_id, None)

    def collect(self) -> None:
        """Do nothing: no image was ever removed."""

    async def kernel(self, image_id: str) -> pb.ZoneKernel:
        return pb.ZoneKernel(name=image_id, image_path=f"/kernels/{image_id}/image")

    def pulls(self) -> list[dict[str, object]]:
        return []


@dataclass
class Rig:
    """A xenpod-cri that serves, with its parts and a client."""

    config: CriConfig
    protect: FakeProtect
    network: FakeNetwork
    images: FakeImages
    daemon: CriDaemon
    cri: Any
    """The RuntimeService stub."""

    async def pod(self, name: str = "web", handler: str = "", **fields: Any) -> str:
        """RunPodSandbox: the pod's id."""
        request = cri.RunPodSandboxRequest(config=pod_config(name, **fields), runtime_handler=handler)
        return str((await self.cri.RunPodSandbox(request)).pod_sandbox_id)

    async def container(self, pod_id: str, name: str = "main", **fields: Any) -> str:
        """CreateContainer: the container's id."""
        request = cri.CreateContainerRequest(pod_sandbox_id=pod_id, config=container_config(name, **fields))
        return str((await self.cri.CreateContainer(request)).container_id)

    async def started(self, pod_id: str, name: str = "main", **fields: Any) -> str:
        """CreateContainer and StartContainer: the container's id."""
        container_id = await self.container(pod_id, name, **fields)
        await self.cri.StartContainer(cri.StartContainerRequest(container_id=container_id))
        return container_id

    async def status(self, container_id: str) -> cri.ContainerStatus:
        reply = await self.cri.ContainerStatus(cri.ContainerStatusRequest(container_id=container_id))
        assert isinstance(reply, cri.ContainerStatusResponse)
        return reply.status

    async def pod_status(self, pod_id: str) -> cri.PodSandboxStatus:
        reply = await self.cri.PodSandboxStatus(cri.PodSandboxStatusRequest(pod_sandbox_id=pod_id))
        assert isinstance(reply, cri.PodSandboxStatusResponse)
        return reply.status

    async def pods(self, **fields: Any) -> list[str]:
        request = cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(**fields))
        return [item.id for item in (await self.cri.ListPodSandbox(request)).items]

    async def containers(self, **fields: Any) -> list[str]:
        request = cri.ListContainersRequest(filter=cri.ContainerFilter(**fields))
        return [item.id for item in (await self.cri.ListContainers(request)).containers]


def pod_config(name: str = "web", **fields: Any) -> cri.PodSandboxConfig:
    """The configuration of a pod, as in crictl's examples."""
    fields.setdefault("metadata", cri.PodSandboxMetadata(name=name, namespace="default", uid=f"uid-{name}"))
    return cri.PodSandboxConfig(**fields)


def container_config(name: str = "main", **fields: Any) -> cri.ContainerConfig:
    """The configuration of a container, as in crictl's examples."""
    fields.setdefault("metadata", cri.ContainerMetadata(name=name))
    fields.setdefault("image", cri.ImageSpec(image="busybox"))
    return cri.ContainerConfig(**fields)


def node_config(folder: Path) -> CriConfig:
    """A configuration with all paths under ``folder``."""
    return CriConfig(
        state_dir=folder / "state",
        run_dir=folder / "run",
        protect_socket=folder / "protect.sock",
        guest_dir=GUEST,
        cni=CniConfig(conf_dir=folder / "net.d", netns_dir=folder / "netns"),
        handlers={
            "xenpod": HandlerConfig(annotations=ANNOTATIONS),
            "xenpod-gpu": HandlerConfig(profile="gpu"),
            "xenpod-zone": HandlerConfig(host_namespaces=HostNamespaces.ZONE),
        },
    )


@contextlib.asynccontextmanager
async def rig(
    folder: Path,
    protect: FakeProtect | None = None,
    network: FakeNetwork | None = None,
    images: FakeImages | None = None,
    *,
    config: CriConfig | None = None,
    serve: bool = True,
    rates: Rates | None = None,
) -> AsyncIterator[Rig]:
    """Run a node; pass the parts of an earlier one for a restart."""
    protect, network, images = protect or FakeProtect(), network or FakeNetwork(), images or FakeImages()
    config = config or node_config(folder)
    async with contextlib.AsyncExitStack() as stack:
        if serve:
            await stack.enter_async_context(serving(protect, config.protect_socket))
        daemon = await stack.enter_async_context(running_daemon(config, images, network))

        streaming = await stack.enter_async_context(streaming_server(config.streaming))
        service = daemon.service(streaming, rates or Rates())
        both = await stack.enter_async_context(delegation(config, service, daemon.records, daemon.capacity))

        def add(server: grpc.aio.Server) -> None:
            if both is None:
                rpc.add_RuntimeServiceServicer_to_server(service, server)
            else:
                server.add_generic_rpc_handlers((both.service(),))

        await stack.enter_async_context(serve_unix(config.listen, add, name="cri", grace=0.1))
        link = await stack.enter_async_context(channel(config.listen))
        yield Rig(config, protect, network, images, daemon, rpc.RuntimeServiceStub(link))
