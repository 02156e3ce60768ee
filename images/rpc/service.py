"""CRI's ImageService, and its registration together with xenpod.images.v1."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from daemonkit.faults import Invalid
from daemonkit.rpc.interceptors import clip, read_only
from daemonkit.rpc.server import batches
from images.image_errors import Rejected
from images.manager import ImageManager
from images.registry import names
from images.rpc.cri_messages import credentials_from, image_message, verbose_info
from images.rpc.operator import OperatorService
from images.store.catalogue import StoredImage
from xenpod_proto.cri.v1 import runtime_pb2, runtime_pb2_grpc
from xenpod_proto.images.v1 import images_pb2_grpc

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


def add_image_services(
    server: grpc.aio.Server,
    manager: ImageManager,
    mixed: grpc.GenericRpcHandler[Any, Any] | None = None,
) -> None:
    """Register CRI's ImageService and xenpod.images.v1 with a server.

    mixed: CRI's ImageService for the images of several runtimes.
    """
    if mixed is None:
        runtime_pb2_grpc.add_ImageServiceServicer_to_server(ImageService(manager), server)
    else:
        server.add_generic_rpc_handlers((mixed,))
    images_pb2_grpc.add_ImagesServicer_to_server(OperatorService(manager), server)


class ImageService(runtime_pb2_grpc.ImageServiceServicer):
    """One method for each RPC; failures are raised as Faults, and an interceptor maps them to statuses."""

    def __init__(self, manager: ImageManager) -> None:
        self._manager = manager
        self._store = manager.store

    async def PullImage(  # noqa: N802
        self, request: runtime_pb2.PullImageRequest, context: _Context
    ) -> runtime_pb2.PullImageResponse:
        """Pull an image; returns its id once ready to run."""
        reference = names.parse(_asked(request.image))
        try:
            secret, namespace = credentials_from(request.auth), request.sandbox_config.metadata.namespace
            image = await self._manager.pull(reference, secret, namespace=namespace or None)
        except Rejected as fault:
            # The kubelet recognises this error by the text, and only in UNKNOWN (k8s.io/cri-api/pkg/errors;
            # pkg/kubelet/images).
            await context.abort(grpc.StatusCode.UNKNOWN, clip(f"SignatureValidationFailed: {fault}"))
        return runtime_pb2.PullImageResponse(image_ref=image.id)

    @read_only
    async def ListImages(  # noqa: N802
        self, request: runtime_pb2.ListImagesRequest, context: _Context
    ) -> runtime_pb2.ListImagesResponse:
        """List all images, or the image in the filter."""
        return runtime_pb2.ListImagesResponse(images=self._selected(request.filter))

    async def StreamImages(  # noqa: N802
        self, request: runtime_pb2.StreamImagesRequest, context: _Context
    ) -> AsyncIterator[runtime_pb2.StreamImagesResponse]:
        """The same as a stream, each image once."""
        for batch in batches(self._selected(request.filter)):
            yield runtime_pb2.StreamImagesResponse(images=batch)

    @read_only
    async def ImageStatus(  # noqa: N802
        self, request: runtime_pb2.ImageStatusRequest, context: _Context
    ) -> runtime_pb2.ImageStatusResponse:
        """An image's status; empty for a missing image, as the kubelet expects.

        An image with damage that only a pull can repair counts as missing: the kubelet then pulls it with the
        pod's credentials.
        """
        image = self._find(_asked(request.image))
        if image is None or not self._store.usable(image):
            return runtime_pb2.ImageStatusResponse()
        info = verbose_info(image) if request.verbose else {}
        return runtime_pb2.ImageStatusResponse(image=image_message(image), info=info)

    async def RemoveImage(  # noqa: N802
        self, request: runtime_pb2.RemoveImageRequest, context: _Context
    ) -> runtime_pb2.RemoveImageResponse:
        """Remove an image with all its names, if the image exists."""
        image = self._find(_asked(request.image))
        if image is not None:
            await self._manager.remove(image.id)
        return runtime_pb2.RemoveImageResponse()

    @read_only
    async def ImageFsInfo(  # noqa: N802
        self, request: runtime_pb2.ImageFsInfoRequest, context: _Context
    ) -> runtime_pb2.ImageFsInfoResponse:
        """Show the disk usage of the store."""
        usage = await self._manager.usage()
        filesystem = runtime_pb2.FilesystemUsage(
            timestamp=time.time_ns(),
            fs_id=runtime_pb2.FilesystemIdentifier(mountpoint=str(usage.path)),
            used_bytes=runtime_pb2.UInt64Value(value=usage.bytes),
            inodes_used=runtime_pb2.UInt64Value(value=usage.inodes),
        )
        return runtime_pb2.ImageFsInfoResponse(
            image_filesystems=[filesystem], container_filesystems=[filesystem]
        )

    def _selected(self, asked: runtime_pb2.ImageFilter) -> list[runtime_pb2.Image]:
        wanted = asked.image.image
        found: list[StoredImage] = self._store.images()
        if wanted:
            one = self._find(wanted)
            found = [one] if one is not None else []
        return [image_message(image) for image in found]

    def _find(self, text: str) -> StoredImage | None:
        """The image; None if missing, or if its name cannot be parsed."""
        try:
            return self._store.find(text)
        except Invalid:
            return None


def _asked(spec: runtime_pb2.ImageSpec) -> str:
    if not spec.image:
        raise Invalid("read request", "", "no image is named")
    return spec.image
