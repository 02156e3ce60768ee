"""The image part of a containerd, in memory: CRI's ImageService, and the stores behind it.

It does what the real one does, until a test changes what it has or how it answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.empty_pb2 import Empty

from tests.support.images.images import BuiltImage, digest
from tests.support.images.registry import MANIFEST
from xenpod_proto.containerd import (
    content_pb2,
    content_pb2_grpc,
    images_pb2,
    images_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
)
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc as rpc

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_Before: TypeAlias = Callable[[str, _Context], Awaitable[None]]
PIECE = 32 << 10
NAMESPACE = ("containerd-namespace", "k8s.io")


class ScriptedContainerd:
    """images: by id; blobs: by digest; targets: by name or id; offers: what its registries have, by name.

    before: awaited at each call of CRI, with its name; it may abort.  slow: the same for one blob,
    by digest.  breaks_off: writes end without an answer.  garbled: the method of CRI whose answers nobody
    can read.  calls: the requests of CRI.
    """

    def __init__(self) -> None:
        self.images: dict[str, cri.Image] = {}
        self.blobs: dict[str, bytes] = {}
        self.labels: dict[str, dict[str, str]] = {}
        self.targets: dict[str, images_pb2.Descriptor] = {}
        self.offers: dict[str, BuiltImage] = {}
        self.calls: list[tuple[str, Any]] = []
        self.leases: set[str] = set()
        self.filesystems = cri.ImageFsInfoResponse()
        self.version = "containerd"
        self.before: _Before | None = None
        self.slow: dict[str, _Before] = {}
        self.breaks_off = False
        self.garbled = ""

    def add(self, image: BuiltImage, *names: str, blobs: bool = True, size: int = 100) -> None:
        """What a pull of names leaves here; blobs: the layers, too (not after discard_unpacked_layers)."""
        manifest = digest(image.manifest)
        self.blobs |= {manifest: image.manifest, image.id: image.config}
        if blobs:
            self.blobs |= image.blobs
        message = self.images.setdefault(image.id, cri.Image(id=image.id, size=size))
        for name in names:
            tagged = message.repo_digests if "@" in name else message.repo_tags
            tagged.append(name)
        for name in (*names, image.id):
            self.targets[name] = images_pb2.Descriptor(
                media_type=MANIFEST, digest=manifest, size=len(image.manifest)
            )

    def resolve(self, name: str) -> cri.Image | None:
        """Find an image by id or name."""
        found = (one for one in self.images.values() if name in (one.id, *one.repo_tags, *one.repo_digests))
        return next(found, None)

    def asked(self, method: str) -> list[Any]:
        """The requests of one method so far."""
        return [request for called, request in self.calls if called == method]

    async def note(self, method: str, request: Any, context: _Context) -> None:
        self.calls.append((method, request))
        if self.before is not None:
            await self.before(method, context)


class _Cri(rpc.ImageServiceServicer):
    def __init__(self, own: ScriptedContainerd) -> None:
        self._own = own

    async def ImageStatus(self, request: cri.ImageStatusRequest, context: _Context) -> Any:
        await self._own.note("ImageStatus", request, context)
        return cri.ImageStatusResponse(image=self._own.resolve(request.image.image))

    async def ListImages(self, request: cri.ListImagesRequest, context: _Context) -> Any:
        await self._own.note("ListImages", request, context)
        return cri.ListImagesResponse(images=self._own.images.values())

    async def PullImage(self, request: cri.PullImageRequest, context: _Context) -> Any:
        await self._own.note("PullImage", request, context)
        name = request.image.image
        if (image := self._own.offers.get(name)) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{name}: not found")
        assert image is not None
        self._own.add(image, name)
        return cri.PullImageResponse(image_ref=image.id)

    async def RemoveImage(self, request: cri.RemoveImageRequest, context: _Context) -> Any:
        await self._own.note("RemoveImage", request, context)
        if (image := self._own.resolve(request.image.image)) is not None:
            del self._own.images[image.id]
        return cri.RemoveImageResponse()

    async def ImageFsInfo(self, request: cri.ImageFsInfoRequest, context: _Context) -> Any:
        await self._own.note("ImageFsInfo", request, context)
        return self._own.filesystems


class _Runtime(rpc.RuntimeServiceServicer):
    def __init__(self, own: ScriptedContainerd) -> None:
        self._own = own

    async def Version(self, request: cri.VersionRequest, context: _Context) -> Any:
        return cri.VersionResponse(runtime_name=self._own.version)


class _Content(content_pb2_grpc.ContentServicer):
    def __init__(self, own: ScriptedContainerd) -> None:
        self._own = own

    async def Read(self, request: Any, context: _Context) -> AsyncIterator[Any]:
        await _check(context)
        data = await _found(self._own.blobs, request.digest, context)
        await self._wait("Read", request.digest, context)
        for start in range(request.offset, len(data), PIECE):
            yield content_pb2.ReadContentResponse(offset=start, data=data[start : start + PIECE])

    async def Info(self, request: Any, context: _Context) -> Any:
        await _check(context)
        data = await _found(self._own.blobs, request.digest, context)
        return content_pb2.InfoResponse(info=content_pb2.Info(digest=request.digest, size=len(data)))

    async def Update(self, request: Any, context: _Context) -> Any:
        await _check(context)
        labels = self._own.labels.setdefault(request.info.digest, {})
        for path in request.update_mask.paths:
            key = path.removeprefix("labels.")
            labels[key] = request.info.labels[key]
        return content_pb2.UpdateResponse(info=request.info)

    async def Write(self, requests: AsyncIterator[Any], context: _Context) -> AsyncIterator[Any]:
        await _check(context, "containerd-lease")
        written = bytearray()
        async for request in requests:
            await self._wait("Write", request.expected, context)
            if self._own.breaks_off:
                return
            if request.expected in self._own.blobs:
                await context.abort(grpc.StatusCode.ALREADY_EXISTS, f"content {request.expected}")
            assert request.offset == len(written)
            written += request.data
            if request.action == content_pb2.COMMIT:
                if digest(bytes(written)) != request.expected or len(written) != request.total:
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "unexpected commit digest")
                self._own.blobs[request.expected] = bytes(written)
            yield content_pb2.WriteContentResponse(action=request.action, offset=len(written))

    async def _wait(self, method: str, blob: str, context: _Context) -> None:
        if blob in self._own.slow:
            await self._own.slow[blob](method, context)


class _Images(images_pb2_grpc.ImagesServicer):
    def __init__(self, own: ScriptedContainerd) -> None:
        self._own = own

    async def Get(self, request: Any, context: _Context) -> Any:
        await _check(context)
        target = await _found(self._own.targets, request.name, context)
        return images_pb2.GetImageResponse(image=images_pb2.Image(name=request.name, target=target))

    async def Create(self, request: Any, context: _Context) -> Any:
        await _check(context, "containerd-lease")
        image, target = request.image, request.image.target
        if image.name in self._own.targets:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, image.name)
        self._own.targets[image.name] = target
        # The labels lead to the configuration, whose digest is the id.
        config = self._own.labels[target.digest]["containerd.io/gc.ref.content.config"]
        message = self._own.images.setdefault(config, cri.Image(id=config, size=100))
        (message.repo_digests if "@" in image.name else message.repo_tags).append(image.name)
        return images_pb2.CreateImageResponse(image=image)


class _Leases(leases_pb2_grpc.LeasesServicer):
    def __init__(self, own: ScriptedContainerd) -> None:
        self._own = own

    async def Create(self, request: Any, context: _Context) -> Any:
        await _check(context)
        assert request.labels["containerd.io/gc.expire"]
        self._own.leases.add(request.id)
        return leases_pb2.CreateResponse(lease=leases_pb2.Lease(id=request.id))

    async def Delete(self, request: Any, context: _Context) -> Any:
        await _check(context)
        self._own.leases.remove(request.id)
        return Empty()


class _Garbling(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    def __init__(self, own: ScriptedContainerd) -> None:
        self._own = own

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        if not self._own.garbled or not details.method.endswith(f"/{self._own.garbled}"):
            return handler
        return grpc.unary_unary_rpc_method_handler(
            handler.unary_unary, handler.request_deserializer, lambda _: b"\xff\xff\xff"
        )


@asynccontextmanager
async def serving(own: ScriptedContainerd, path: Path, stores: bool = True) -> AsyncIterator[None]:
    """Serve on a socket while the block runs; ``stores``: serve containerd's own API too."""
    server = grpc.aio.server(interceptors=[_Garbling(own)])
    rpc.add_ImageServiceServicer_to_server(_Cri(own), server)
    rpc.add_RuntimeServiceServicer_to_server(_Runtime(own), server)
    if stores:
        content_pb2_grpc.add_ContentServicer_to_server(_Content(own), server)
        images_pb2_grpc.add_ImagesServicer_to_server(_Images(own), server)
        leases_pb2_grpc.add_LeasesServicer_to_server(_Leases(own), server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


async def _check(context: _Context, *keys: str) -> None:
    metadata = dict(context.invocation_metadata() or ())
    assert NAMESPACE[1] == metadata.get(NAMESPACE[0])
    assert all(key in metadata for key in keys)


async def _found(where: dict[str, Any], key: str, context: _Context) -> Any:
    if key not in where:
        await context.abort(grpc.StatusCode.NOT_FOUND, f"{key}: not found")
    return where[key]
