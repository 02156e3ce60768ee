"""CRI's ImageService in front of two image stores (docs/adr/0024-images-of-two-runtimes.md)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any, TypeAlias

import grpc
import grpc.aio

from cri.delegate.config import DelegateConfig, Unnamed
from cri.delegate.images import union
from cri.delegate.images.pull_memory import PullMemory
from cri.delegate.images.theirs import DelegateImages
from cri.delegate.kinds import parsed
from cri.delegate.link import IMAGES, Metadata, error_text, passed_on, remaining
from cri.delegate.owners import Owner
from cri.delegate.routes import Answer, Behaviour, end_with, unary
from daemonkit.faults import Broken, Fault, Invalid, TooLate, Unreachable
from daemonkit.logs import fields
from daemonkit.rpc.channels import MESSAGE_LIMIT_BYTES
from daemonkit.rpc.server import batches
from images.bounds.digests import is_digest
from images.rpc.service import ImageService
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
IsOurs = Callable[[cri.PodSandboxMetadata], bool]
"""Whether our records have a pod with this metadata, so that it runs in a zone."""


class MixedImages:
    """ImageService over both stores, with one method for each RPC.

    handlers: the names of our runtime handlers.
    """

    def __init__(
        self,
        config: DelegateConfig,
        handlers: Collection[str],
        ours: ImageService,
        theirs: DelegateImages,
        memory: PullMemory,
        is_ours: IsOurs,
    ) -> None:
        self._default = Owner.OURS if config.default is Unnamed.XENPOD else Owner.DELEGATE
        self._handlers = handlers
        self._ours = ours
        self._theirs = theirs
        self._memory = memory
        self._is_ours = is_ours

    def service(self) -> grpc.GenericRpcHandler[Any, Any]:
        """The ImageService to add to a server."""
        unaries: dict[str, Behaviour] = {
            "PullImage": self.pull,
            "ListImages": self.list_images,
            "ImageStatus": self.status,
            "RemoveImage": self.remove,
            "ImageFsInfo": self.filesystems,
        }
        handlers = {name: unary(one, getattr(self._ours, name)) for name, one in unaries.items()}
        handlers["StreamImages"] = grpc.unary_stream_rpc_method_handler(
            self.stream, response_serializer=cri.StreamImagesResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(IMAGES.strip("/"), handlers)

    async def pull(self, raw: bytes, context: _Context) -> Answer:
        """PullImage, on the side of the pod that the image is for."""
        request = parsed("PullImage", cri.PullImageRequest, raw)
        spec, side = request.image, self._side_of(request)
        if side is Owner.OURS:
            answer: Answer = await self._ours.PullImage(request, context)
        else:
            if spec.runtime_handler in self._handlers:
                spec.runtime_handler = ""  # the delegate does not know ours
                raw = request.SerializeToString()
            answer = await self._theirs.pull(raw, remaining(context), passed_on(context))
        self._memory.pulled(spec.image, side, request.auth)
        return answer

    async def list_images(self, raw: bytes, context: _Context) -> Answer:
        """ListImages: the images of both sides, each once."""
        request = parsed("ListImages", cri.ListImagesRequest, raw)
        listed = await self._listed(request.filter, context, passed_on(context))
        answer = cri.ListImagesResponse(images=listed)
        if answer.ByteSize() > MESSAGE_LIMIT_BYTES:
            cause = f"its images and ours together are a list of more than {MESSAGE_LIMIT_BYTES >> 20} MiB"
            raise Broken("ListImages", self._theirs.name, cause)
        return answer

    async def stream(self, raw: bytes, context: _Context) -> AsyncIterator[cri.StreamImagesResponse]:
        """StreamImages: the same as a stream."""
        request = parsed("StreamImages", cri.StreamImagesRequest, raw)
        try:
            listed = await self._listed(request.filter, context, passed_on(context))
        except grpc.aio.AioRpcError as error:
            await end_with(error, context)
        for batch in batches(listed):
            yield cri.StreamImagesResponse(images=batch)

    async def status(self, raw: bytes, context: _Context) -> Answer:
        """ImageStatus: an image is present if either side has it."""
        request = parsed("ImageStatus", cri.ImageStatusRequest, raw)
        ours = await self._ours.ImageStatus(request, context)
        theirs = await self._their_status(request, passed_on(context))
        if theirs is None or not theirs.image.id:
            return ours
        if not ours.image.id:
            return theirs
        first = self._first(request.image)
        answer = ours if first is Owner.OURS else theirs
        if ours.image.id == theirs.image.id:
            answer.image.CopyFrom(union.united(ours.image, theirs.image))
        return answer

    async def remove(self, raw: bytes, context: _Context) -> Answer:
        """RemoveImage: removes the image that ImageStatus shows, from both sides.

        The delegate goes first.  While it does not answer, no image that it may have is removed: the kubelet
        would count its space as freed.
        """
        request = parsed("RemoveImage", cri.RemoveImageRequest, raw)
        metadata = passed_on(context)
        image_id = await self._meant(request.image, context, metadata)
        if not image_id:
            return cri.RemoveImageResponse()
        refusal: Exception | None = None
        try:
            await self._theirs.remove(image_id, remaining(context), metadata)
        except (Unreachable, TooLate):
            raise
        except (grpc.aio.AioRpcError, Fault) as error:
            refusal = error
        # Only the delegate can have an id that is no digest.
        if is_digest(image_id):
            own = cri.RemoveImageRequest(image=cri.ImageSpec(image=image_id))
            await self._ours.RemoveImage(own, context)
        if refusal is not None:
            raise refusal
        return cri.RemoveImageResponse()

    async def filesystems(self, raw: bytes, context: _Context) -> Answer:
        """ImageFsInfo: the filesystems of both stores; two stores on one filesystem are summed up."""
        request = parsed("ImageFsInfo", cri.ImageFsInfoRequest, raw)
        ours = await self._ours.ImageFsInfo(request, context)
        theirs = await self._theirs.filesystems(passed_on(context))
        if theirs is None:
            return ours
        return await asyncio.to_thread(union.filesystems, ours, theirs)

    def _side_of(self, request: cri.PullImageRequest) -> Owner:
        """The side to pull on: its pod's; without a pod, its handler's; without a handler, the default."""
        pod = request.sandbox_config.metadata
        if pod.ByteSize():
            return Owner.OURS if self._is_ours(pod) else Owner.DELEGATE
        return self._by_handler(request.image) or self._default

    def _by_handler(self, spec: cri.ImageSpec) -> Owner | None:
        if not spec.runtime_handler:
            return None
        return Owner.OURS if spec.runtime_handler in self._handlers else Owner.DELEGATE

    def _first(self, spec: cri.ImageSpec) -> Owner:
        """Whose image a name means if both sides have one: the handler's, else the last pull's."""
        return self._by_handler(spec) or self._memory.side(spec.image)

    async def _their_status(
        self, request: cri.ImageStatusRequest, metadata: Metadata
    ) -> cri.ImageStatusResponse | None:
        """The delegate's ImageStatus; None while it does not answer: zones go on without its images."""
        asked = cri.ImageStatusRequest()
        asked.CopyFrom(request)
        if asked.image.runtime_handler in self._handlers:
            asked.image.runtime_handler = ""
        try:
            return await self._theirs.status(asked, metadata)
        except (grpc.aio.AioRpcError, Fault) as error:
            log.debug("the delegate's images are left out", extra=fields(cause=error_text(error)))
            return None

    async def _meant(self, spec: cri.ImageSpec, context: _Context, metadata: Metadata) -> str:
        """The id of the image that a name means, "" for none; raises the delegate's errors."""
        if not spec.image:
            raise Invalid("read request", "", "no image is named")
        if is_digest(spec.image):
            return spec.image
        # ListImages, since ImageStatus does not show our damaged images.
        listing = cri.ListImagesRequest(filter=cri.ImageFilter(image=spec))
        listed = await self._ours.ListImages(listing, context)
        their_id = await self._theirs.meant(spec.image, metadata)
        our_id = "".join(image.id for image in listed.images[:1])
        if their_id == spec.image:
            return their_id
        if our_id and their_id:
            return our_id if self._first(spec) is Owner.OURS else their_id
        return our_id or their_id

    async def _listed(self, asked: cri.ImageFilter, context: _Context, metadata: Metadata) -> list[cri.Image]:
        own = await self._ours.ListImages(cri.ListImagesRequest(), context)
        theirs = await self._theirs.images(metadata)
        images = union.joined(own.images, theirs, self._memory.side)
        if not (name := asked.image.image):
            return images
        named = [image for image in images if name in (image.id, *image.repo_tags, *image.repo_digests)]
        if named:
            return named
        wanted = await self._meant(asked.image, context, metadata)
        return [image for image in images if image.id == wanted]
