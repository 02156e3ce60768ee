"""Pulls an image that a container's side lacks, before the container is created.

The kubelet pulls an image once for the node, and an image that either side has counts as present, so the side
of the pod may lack it.  That side then pulls the image from its registry, by digest, with the credentials of
the last pull from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

import grpc.aio

from cri.delegate.images.pull_memory import PullMemory
from cri.delegate.images.theirs import DelegateImages, parsed_answer
from cri.delegate.link import error_text
from cri.delegate.owners import Owner
from daemonkit.faults import Fault, Invalid, Refused
from daemonkit.logs import fields
from daemonkit.tasks import Background, join
from images.manager import ImageManager
from images.registry import names
from images.registry.credentials import ANONYMOUS
from images.registry.names import Reference
from images.rpc.cri_messages import credentials_from
from images.store.catalogue import StoredImage
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

_OPERATION = "create container"
_MOST_PULLS = 4
"""Most pulls of the delegate at once.  The image manager bounds ours."""
_MOST_NAMES = 64
"""Most digests of an image of the delegate that are read."""
_IMPORT = {
    Owner.OURS: "import it into xenpod (protect image import)",
    Owner.DELEGATE: "import it into that runtime too (containerd: ctr -n k8s.io images import)",
}
"""By the side that lacks an image: how to give that side an image that no registry has."""


class MissingImages:
    """Pulls images that a container's side lacks; ``ensure`` is awaited before each container is created."""

    def __init__(self, manager: ImageManager, theirs: DelegateImages, memory: PullMemory) -> None:
        self._manager = manager
        self._theirs = theirs
        self._memory = memory
        self._tasks = Background()
        self._running: dict[tuple[Owner, str], asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_MOST_PULLS)

    async def ensure(self, owner: Owner, request: cri.CreateContainerRequest) -> None:
        """Have the images of a container on its owner's side, if either side has them.

        Refused: only the other side has an image, and this side cannot pull it.
        """
        ensure = self._on_ours if owner is Owner.OURS else self._on_theirs
        specs = (request.config.image, *(mount.image for mount in request.config.mounts))
        for spec in {spec.image: spec for spec in specs if spec.image}.values():
            await ensure(spec, request.sandbox_config)

    async def stop(self) -> None:
        """Cancel the pulls under way, and wait for their end."""
        await self._tasks.close(0)

    async def _once(self, owner: Owner, image_id: str, pull: Coroutine[Any, Any, None]) -> None:
        """Pull an image once for all callers (single-flight).  The pull goes on without its callers.

        The kubelet waits two minutes for CreateContainer: a longer pull is done when it tries again.
        """
        key = (owner, image_id)
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = self._tasks.spawn(_logged(key, pull), f"pull image {image_id}")
            task.add_done_callback(lambda _: self._running.pop(key))
        else:
            pull.close()
        await join(task)

    async def _on_ours(self, spec: cri.ImageSpec, _: cri.PodSandboxConfig) -> None:
        if self._here(spec.image) is not None:
            return
        found = await self._theirs.find(spec.image)
        if found is not None:
            await self._once(Owner.OURS, found.id, self._pull_ours(found, spec.user_specified_image))

    def _here(self, name: str) -> StoredImage | None:
        """Our image of this name or id; None: there is none that containers can use."""
        try:
            image = self._manager.store.find(name)
        except Invalid:
            return None
        return image if image is not None and self._manager.store.usable(image) else None

    async def _pull_ours(self, found: cri.Image, asked: str) -> None:
        try:
            pinned = self._pinned(found.repo_digests[:_MOST_NAMES], asked)
            auth = self._memory.auth(pinned)
            pulled = await self._manager.pull(pinned, ANONYMOUS if auth is None else credentials_from(auth))
            if pulled.id != as_digest(found.id):
                raise Refused("pull", str(pinned), f"for this platform it is {pulled.id}")
        except (Fault, grpc.aio.AioRpcError) as error:
            raise _unavailable(Owner.OURS, found.id, self._theirs.name, error) from error

    async def _on_theirs(self, spec: cri.ImageSpec, pod: cri.PodSandboxConfig) -> None:
        if await self._theirs.find(spec.image) is not None:
            return
        image = self._here(spec.image)
        if image is not None:
            await self._once(Owner.DELEGATE, image.id, self._pull_theirs(image, spec, pod))

    async def _pull_theirs(self, image: StoredImage, spec: cri.ImageSpec, pod: cri.PodSandboxConfig) -> None:
        wanted = cri.ImageSpec()
        wanted.CopyFrom(spec)
        try:
            pinned = self._pinned(image.repo_digests, spec.user_specified_image)
            wanted.image, wanted.user_specified_image = str(pinned), ""
            auth = self._memory.auth(pinned)
            async with self._slots:
                pulled = await self._theirs.pull(
                    cri.PullImageRequest(image=wanted, auth=auth, sandbox_config=pod).SerializeToString(),
                    self._manager.settings.pull_seconds,
                )
            reference = parsed_answer(cri.PullImageResponse, pulled, "PullImage", self._theirs.name).image_ref
            if as_digest(reference) != image.id and await self._theirs.find(image.id) is None:
                raise Refused("pull", str(pinned), "for the delegate's platform it is another image")
        except (Fault, grpc.aio.AioRpcError) as error:
            raise _unavailable(Owner.DELEGATE, image.id, "xenpod", error) from error

    def _pinned(self, digests: Iterable[str], asked: str) -> Reference:
        """The name with a digest to pull an image by; Refused when the image has none.

        A repository with known credentials comes first, then that of the name that the pod asks for.
        """
        known = [one for text in digests if (one := _parsed(text)) is not None and one.digest is not None]
        if not known:
            raise Refused("pull", "", "it has no name with a digest, as an image that was only imported")
        wanted = _parsed(asked) if asked else None

        def rank(one: Reference) -> tuple[bool, bool]:
            return self._memory.auth(one) is None, wanted is None or one.name != wanted.name

        return min(known, key=rank)


async def _logged(key: tuple[Owner, str], pull: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await pull
    seconds = loop.time() - begun
    log.info(
        "image pulled for the other runtime", extra=fields(image=key[1], to=key[0].value, seconds=seconds)
    )


def as_digest(image_id: str) -> str:
    """An image id with its algorithm, which some runtimes leave out."""
    return image_id if ":" in image_id else f"sha256:{image_id}"


def _parsed(text: str) -> Reference | None:
    with suppress(Invalid):
        return names.parse(text)
    return None


def _unavailable(lacks: Owner, image_id: str, has: str, error: Exception) -> Refused:
    cause = f"on this node only {has} has it, and it cannot be pulled: {error_text(error)}"
    hint = f"imagePullPolicy: Always pulls it for this pod; if no registry has it, {_IMPORT[lacks]}"
    return Refused(_OPERATION, f"of image {image_id}", cause, hint)
