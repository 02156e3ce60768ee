"""Two image stores behind one ImageService: ours, and a scripted containerd's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from cri.delegate.config import DelegateConfig, Unnamed
from cri.delegate.images.assembly import mixed_images
from cri.delegate.link import Delegate
from cri.delegate.owners import Ensure, Owner
from daemonkit.config import Seconds
from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.rpc.service import add_image_services
from tests.support.images.image_manager import running
from tests.support.images.scripted_containerd import ScriptedContainerd, serving
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc as rpc

HANDLERS = ("xenpod", "xenpod-gpu")


@dataclass
class MixedNode:
    """zones: uids of the pods in zones; delegate: the link to the delegate."""

    manager: ImageManager
    images: rpc.ImageServiceAsyncStub
    ensure: Ensure
    delegate: Delegate
    containerd: ScriptedContainerd
    zones: set[str] = field(default_factory=set)

    async def status(self, name: str, handler: str = "") -> cri.Image:
        spec = cri.ImageSpec(image=name, runtime_handler=handler)
        answer = await self.images.ImageStatus(cri.ImageStatusRequest(image=spec))
        image: cri.Image = answer.image
        return image

    async def listed(self, name: str = "") -> list[cri.Image]:
        asked = cri.ImageFilter(image=cri.ImageSpec(image=name) if name else None)
        return list((await self.images.ListImages(cri.ListImagesRequest(filter=asked))).images)

    async def pull(self, name: str, zone: bool, auth: cri.AuthConfig | None = None) -> str:
        """Pull an image for a pod, as the kubelet does."""
        pod = sandbox("zone-pod" if zone else "host-pod")
        if zone:
            self.zones.add(pod.metadata.uid)
        spec = cri.ImageSpec(image=name)
        answer = await self.images.PullImage(cri.PullImageRequest(image=spec, auth=auth, sandbox_config=pod))
        reference: str = answer.image_ref
        return reference

    async def create(self, owner: Owner, image: str, asked: str = "", *mounted: str) -> None:
        """Do the work before the creation of a container."""
        mounts = [cri.Mount(container_path="/m", image=cri.ImageSpec(image=one)) for one in mounted]
        config = cri.ContainerConfig(
            image=cri.ImageSpec(image=image, user_specified_image=asked), mounts=mounts
        )
        pod = sandbox("zone-pod" if owner is Owner.OURS else "host-pod")
        await self.ensure(owner, cri.CreateContainerRequest(config=config, sandbox_config=pod))

    def here(self, image_id: str) -> bool:
        """Whether our store has an image."""
        return self.manager.store.find(image_id) is not None


def sandbox(uid: str) -> cri.PodSandboxConfig:
    return cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name=uid, namespace="default", uid=uid))


@asynccontextmanager
async def mixed_node(
    folder: Path,
    *,
    default: Unnamed = Unnamed.DELEGATE,
    keep: float = 120,
    timeout: float = 30,
) -> AsyncIterator[MixedNode]:
    other = ScriptedContainerd()
    config = DelegateConfig(f"unix://{folder}/c.sock", default, timeout=Seconds(timeout), keep=Seconds(keep))
    settings = ImageSettings(folder / "state", folder / "certs.d", connect_seconds=30)
    delegate, zones = Delegate(config), set[str]()
    try:
        async with serving(other, config.path), running(settings) as manager:
            delegate.trouble, delegate.ever_answered = "", True
            parts = mixed_images(config, delegate, manager, HANDLERS, lambda pod: pod.uid in zones)
            async with parts as (service, ensure):

                def add(server: grpc.aio.Server) -> None:
                    add_image_services(server, manager, service)

                async with serve_unix(folder / "x.sock", add, name="cri", grace=0.1):
                    async with channel(folder / "x.sock") as link:
                        stub = rpc.ImageServiceStub(link)
                        yield MixedNode(manager, stub, ensure, delegate, other, zones)
    finally:
        await delegate.close()
