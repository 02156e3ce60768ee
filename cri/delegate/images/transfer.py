"""Brings an image to the side of its pod, from the other side, before a container is created.

The kubelet pulls an image once for the node, and an image that either side has counts as present, so the side
of the pod may lack it.  It is copied from the other side if possible, else pulled from the registry with
the credentials of the last pull from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

import grpc.aio

from cri.delegate.images.content import ContentSource, target_of
from cri.delegate.images.hand_over import hand_over
from cri.delegate.images.memory import PullMemory
from cri.delegate.images.theirs import DelegateImages, parsed_answer
from cri.delegate.link import error_text
from cri.delegate.owners import Owner
from daemonkit.faults import Fault, Invalid, Refused
from daemonkit.logs import fields
from daemonkit.tasks import Background, join
from images.manager import ImageManager
from images.pull.taking import OfferedImage
from images.registry import names
from images.registry.credentials import ANONYMOUS, Credentials
from images.registry.names import Reference
from images.rpc.cri_messages import credentials_from
from images.store.catalogue import StoredImage
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

_OPERATION = "create container"
_HINT = "imagePullPolicy: Always pulls it for this pod; or remove it from the node, so that it is pulled anew"
_GIVEN = 4
"""How many images are given to the delegate at once.  Those that we take count as pulls of ours."""
_NAMES = 64
"""How many tags, and how many digests, of an image of the delegate are read."""
_SEEN = 10.0
"""Seconds within which containerd's CRI must show an image that was written into its store."""
_LOOK = 0.05


class ImageTransfer:
    """Brings images from one side to the other; ``ensure`` is awaited before each container is created.

    channel: to the delegate's socket, where a containerd also serves its content store.
    """

    def __init__(
        self, manager: ImageManager, theirs: DelegateImages, memory: PullMemory, channel: grpc.aio.Channel
    ) -> None:
        self._manager = manager
        self._theirs = theirs
        self._memory = memory
        self._channel = channel
        self._stall = manager.settings.stall_seconds
        self._tasks = Background()
        self._running: dict[tuple[Owner, str], asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(_GIVEN)

    async def ensure(self, owner: Owner, request: cri.CreateContainerRequest) -> None:
        """Have the images of a container on its owner's side, if either side has them.

        Refused: only the other side has one, and neither that side nor the registry gives it.
        """
        bring = self._to_ours if owner is Owner.OURS else self._to_theirs
        specs = (request.config.image, *(mount.image for mount in request.config.mounts))
        for spec in {spec.image: spec for spec in specs if spec.image}.values():
            await bring(spec, request.sandbox_config)

    async def stop(self) -> None:
        """Cancel the transfers under way, and wait for their end."""
        await self._tasks.close(0)

    def here(self, name: str) -> StoredImage | None:
        """Our image of this name or id; None: there is none that containers can use."""
        try:
            image = self._manager.store.find(name)
        except Invalid:
            return None
        return image if image is not None and self._manager.store.usable(image) else None

    async def _bring(self, key: tuple[Owner, str], work: Coroutine[Any, Any, None]) -> None:
        """Run work once for all callers with the same key (single-flight).  It goes on without them.

        The kubelet waits two minutes for CreateContainer: a longer transfer is done when it tries again.
        """
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = self._tasks.spawn(_logged(key, work), f"bring image {key[1]}")
            task.add_done_callback(lambda _: self._running.pop(key))
        else:
            work.close()
        await join(task)

    # Theirs to ours.

    async def _to_ours(self, spec: cri.ImageSpec, _: cri.PodSandboxConfig) -> None:
        if self.here(spec.image) is not None:
            return
        found = await self._theirs.find(spec.image)
        if found is not None:
            await self._bring((Owner.OURS, found.id), self._take(found, spec.user_specified_image))

    async def _take(self, found: cri.Image, asked: str) -> None:
        try:
            await self._take_or_pull(found, asked)
        except (Fault, grpc.aio.AioRpcError) as error:
            raise _unavailable(found.id, self._theirs.name, error_text(error)) from error

    async def _take_or_pull(self, found: cri.Image, asked: str) -> None:
        known = self._by_secret(_names(found, asked))
        target = await target_of(self._channel, found.id)
        image_id = as_digest(found.id)
        if target is not None:
            source = ContentSource(self._channel, self._theirs.name, self._stall)
            await self._manager.take(OfferedImage(image_id, target, known, source, self._credentials))
            return
        pinned = [one for one in known if one.digest is not None]
        if not pinned:
            raise Refused("pull", found.id, "the delegate shows no bytes of it, and no name with a digest")
        image = await self._manager.pull(pinned[0], self._credentials(pinned[0]))
        if image.id != image_id:
            raise Refused("pull", str(pinned[0]), f"for this platform it is {image.id}")

    def _by_secret(self, known: Sequence[Reference]) -> tuple[Reference, ...]:
        """Sort names so that those with known credentials come first: only the first is pulled."""
        return tuple(sorted(known, key=lambda one: self._memory.auth(one) is None))

    def _credentials(self, known: Reference) -> Credentials:
        auth = self._memory.auth(known)
        return ANONYMOUS if auth is None else credentials_from(auth)

    # Ours to theirs.

    async def _to_theirs(self, spec: cri.ImageSpec, pod: cri.PodSandboxConfig) -> None:
        if await self._theirs.find(spec.image) is not None:
            return
        image = self.here(spec.image)
        if image is not None:
            await self._bring((Owner.DELEGATE, image.id), self._give(image, spec, pod))

    async def _give(self, image: StoredImage, spec: cri.ImageSpec, pod: cri.PodSandboxConfig) -> None:
        async with self._turns:
            try:
                await self._hand_over(image, spec.image)
                return
            except (Fault, grpc.aio.AioRpcError) as error:
                first = error_text(error)
            try:
                await self._have_pulled(image, spec, pod)
            except (Fault, grpc.aio.AioRpcError) as error:
                raise _unavailable(image.id, "xenpod", f"{first}; {error_text(error)}") from error

    async def _hand_over(self, image: StoredImage, asked: str) -> None:
        """Write an image into the delegate's store, and wait until its CRI shows it."""
        known = [names.parse(one) for one in (*image.repo_tags, *image.repo_digests)]
        given = [
            *image.repo_tags,
            *dict.fromkeys(one.at(image.manifest_digest) for one in known),
        ]
        async with self._manager.lend(image) as lent:
            await hand_over(self._channel, lent, given or [image.id], self._stall)
        self._theirs.changed()
        loop = asyncio.get_running_loop()
        until = loop.time() + _SEEN
        wanted = asked if asked in given else image.id
        while await self._theirs.find(wanted) is None:
            if loop.time() >= until:
                raise Refused("hand over image", image.id, f"its CRI does not show it after {_SEEN:.0f} s")
            # CRI has no events about images.
            await asyncio.sleep(_LOOK)

    async def _have_pulled(self, image: StoredImage, spec: cri.ImageSpec, pod: cri.PodSandboxConfig) -> None:
        """Have the delegate pull an image by digest: its tags may mean another image by now."""
        known = self._by_secret([names.parse(one) for one in image.repo_digests])
        if not known:
            raise Refused("pull", image.id, "it has no name with a digest to be pulled by")
        wanted = cri.ImageSpec()
        wanted.CopyFrom(spec)
        wanted.image, wanted.user_specified_image = str(known[0]), ""
        request = cri.PullImageRequest(image=wanted, auth=self._memory.auth(known[0]), sandbox_config=pod)
        seconds = self._manager.settings.pull_seconds
        answer = await self._theirs.pull(request.SerializeToString(), seconds)
        pulled = parsed_answer(cri.PullImageResponse, answer, "PullImage", self._theirs.name).image_ref
        if as_digest(pulled) != image.id and await self._theirs.find(image.id) is None:
            raise Refused("pull", str(known[0]), "for the delegate's platform it is another image")


async def _logged(key: tuple[Owner, str], work: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await work
    log.info("image brought over", extra=fields(image=key[1], to=key[0].value, seconds=loop.time() - begun))


def as_digest(image_id: str) -> str:
    """An image id with its algorithm, which some runtimes leave out."""
    return image_id if ":" in image_id else f"sha256:{image_id}"


def _names(found: cri.Image, asked: str) -> list[Reference]:
    """The delegate's names of an image, beginning with the one that was asked for."""
    known: list[Reference] = []
    for text in (*found.repo_tags[:_NAMES], *found.repo_digests[:_NAMES]):
        try:
            known.append(names.parse(text))
        except Invalid:
            continue
    try:
        wanted = names.parse(asked) if asked else None
    except Invalid:
        wanted = None
    return sorted(dict.fromkeys(known), key=lambda one: one != wanted)


def _unavailable(image_id: str, side: str, cause: str) -> Refused:
    return Refused(_OPERATION, f"of image {image_id}", f"on this node only {side} has it: {cause}", _HINT)
