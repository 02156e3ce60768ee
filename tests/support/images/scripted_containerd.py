"""The image part of a containerd, in memory: CRI's ImageService.

The class acts as containerd does. Tests change the images and the answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio

from tests.support.images.images import BuiltImage, digest
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.cri.v1 import runtime_pb2_grpc as rpc

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_Before: TypeAlias = Callable[[str, _Context], Awaitable[None]]


class ScriptedContainerd:
    """images: by id; offers: images of the registries, by name; calls: the requests until now.

    before: awaited at each call, with its name; may abort. garbled: the method whose answers nobody can read.
    """

    def __init__(self) -> None:
        self.images: dict[str, cri.Image] = {}
        self.offers: dict[str, BuiltImage] = {}
        self.calls: list[tuple[str, Any]] = []
        self.filesystems = cri.ImageFsInfoResponse()
        self.version = "containerd"
        self.before: _Before | None = None
        self.garbled = ""

    def add(self, image: BuiltImage, *names: str, size: int = 100) -> None:
        """Names after a pull of names: each name, and the repository's name with a digest."""
        message = self.images.setdefault(image.id, cri.Image(id=image.id, size=size))
        for name in names:
            repository = name.partition("@")[0] if "@" in name else name.rpartition(":")[0]
            pinned = f"{repository}@{digest(image.manifest)}"
            if "@" not in name and name not in message.repo_tags:
                message.repo_tags.append(name)
            if pinned not in message.repo_digests:
                message.repo_digests.append(pinned)

    def resolve(self, name: str) -> cri.Image | None:
        """Find an image by id or name."""
        found = (one for one in self.images.values() if name in (one.id, *one.repo_tags, *one.repo_digests))
        return next(found, None)

    def asked(self, method: str) -> list[Any]:
        """The requests of one method until now."""
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
async def serving(own: ScriptedContainerd, path: Path) -> AsyncIterator[None]:
    """Serve on a socket while the block runs."""
    server = grpc.aio.server(interceptors=[_Garbling(own)])
    rpc.add_ImageServiceServicer_to_server(_Cri(own), server)
    rpc.add_RuntimeServiceServicer_to_server(_Runtime(own), server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)
