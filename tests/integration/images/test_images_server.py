"""The image services behind a real gRPC server: codes, and callers that go away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import grpc
import pytest

from daemonkit.rpc.channels import channel
from daemonkit.rpc.server import serve_unix
from images.image_settings import ImageSettings
from images.manager import ImageManager
from images.rpc.service import add_image_services
from tests.support.images import registry as registries
from tests.support.images.image_manager import running
from tests.support.images.images import Layer, build, digest, packed, write_layout
from tests.support.images.registry import LyingRegistry, content, stalling
from xenpod_proto.cri.v1 import runtime_pb2, runtime_pb2_grpc
from xenpod_proto.images.v1 import images_pb2, images_pb2_grpc

IMAGE = build([packed(Layer().file("f", b"x" * 500_000).tar(), "")])
LAYER = f"/v2/app/blobs/{digest(IMAGE.layers[0].data)}"


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[ImageManager]:
    async with running(ImageSettings(tmp_path / "state", tmp_path / "certs.d", connect_seconds=30)) as made:
        yield made


@pytest.fixture
async def calls(manager: ImageManager, tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    socket = tmp_path / "cri.sock"
    async with serve_unix(socket, lambda server: add_image_services(server, manager), name="test"):
        async with channel(socket) as opened:
            yield opened


def _pull(
    calls: grpc.aio.Channel, name: str
) -> grpc.aio.UnaryUnaryCall[runtime_pb2.PullImageRequest, runtime_pb2.PullImageResponse]:
    request = runtime_pb2.PullImageRequest(image=runtime_pb2.ImageSpec(image=name))
    return runtime_pb2_grpc.ImageServiceStub(calls).PullImage(request)


async def _code(call: Awaitable[object]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_each_failure_of_a_pull_has_its_code(calls: grpc.aio.Channel, tmp_path: Path) -> None:
    with LyingRegistry("app", "1", IMAGE) as registry:
        assert await _code(_pull(calls, "no//name")) is grpc.StatusCode.INVALID_ARGUMENT
        assert await _code(_pull(calls, f"{registry.netloc}/app:2")) is grpc.StatusCode.NOT_FOUND
        nobody = f"127.0.0.1:{registries.free_port()}/app"
        assert await _code(_pull(calls, nobody)) is grpc.StatusCode.UNAVAILABLE
        registry.answers[LAYER] = content(IMAGE.layers[0].data[:-1] + b"!")
        assert await _code(_pull(calls, f"{registry.netloc}/app:1")) is grpc.StatusCode.FAILED_PRECONDITION
        registry.answers[LAYER] = registries.status(403)
        assert await _code(_pull(calls, f"{registry.netloc}/app:1")) is grpc.StatusCode.PERMISSION_DENIED


async def test_images_are_streamed_and_filtered_by_name(calls: grpc.aio.Channel, tmp_path: Path) -> None:
    stub = runtime_pb2_grpc.ImageServiceStub(calls)

    async def streamed(wanted: str = "") -> list[str]:
        asked = runtime_pb2.ImageFilter(image=runtime_pb2.ImageSpec(image=wanted))
        stream = stub.StreamImages(runtime_pb2.StreamImagesRequest(filter=asked))
        return [image.id async for message in stream for image in message.images]

    assert await streamed() == []
    layout = write_layout(tmp_path / "layout", IMAGE, "example.com/app:1")
    await images_pb2_grpc.ImagesStub(calls).Import(images_pb2.ImportRequest(path=str(layout)))
    assert await streamed() == [IMAGE.id] == await streamed("example.com/app:1")
    assert await streamed("example.com/other:1") == []


async def test_layout_is_imported_and_missing_path_refused(calls: grpc.aio.Channel, tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", IMAGE, "example.com/app:1")
    stub = images_pb2_grpc.ImagesStub(calls)
    answer = await stub.Import(images_pb2.ImportRequest(path=str(layout)))
    assert [image.id for image in answer.images] == [IMAGE.id]
    assert await _code(stub.Import(images_pb2.ImportRequest(path="/nothing"))) is grpc.StatusCode.NOT_FOUND


async def test_pull_ends_with_its_caller(calls: grpc.aio.Channel, manager: ImageManager) -> None:
    release = threading.Event()
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    with LyingRegistry("app", "1", IMAGE) as registry:
        stall = stalling(IMAGE.layers[0].data[:1000], len(IMAGE.layers[0].data), release)

        def noticed(handler: object) -> None:
            loop.call_soon_threadsafe(asked.set)
            stall(handler)  # type: ignore[arg-type]

        registry.answers[LAYER] = noticed
        call = _pull(calls, f"{registry.netloc}/app:1")
        waiting = asyncio.ensure_future(_code_of_cancelled(call))
        await asyncio.wait_for(asked.wait(), 60)
        call.cancel()
        await waiting
        async with asyncio.timeout(60):
            while manager.pulls._tasks:
                await manager.pulls.drain()
        root = manager.store.files.root
        assert not [
            p for p in root.rglob("*") if p.is_file() and not p.name.startswith(("images.db", "lock"))
        ]
        release.set()


async def _code_of_cancelled(call: Awaitable[object]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.parametrize("name", ["no//name", "app/UPPER:1", "a b", "x@sha256:12", "", "-"])
async def test_malformed_name_is_absent(calls: grpc.aio.Channel, name: str) -> None:
    """As containerd answers: containerd looks for such a name, and finds nothing.

    A missing name is an error.
    """
    service, spec = runtime_pb2_grpc.ImageServiceStub(calls), runtime_pb2.ImageSpec(image=name)
    status, remove = runtime_pb2.ImageStatusRequest(image=spec), runtime_pb2.RemoveImageRequest(image=spec)
    if not name:
        assert await _code(service.ImageStatus(status)) is grpc.StatusCode.INVALID_ARGUMENT
        assert await _code(service.RemoveImage(remove)) is grpc.StatusCode.INVALID_ARGUMENT
        return
    assert not (await service.ImageStatus(status)).HasField("image")
    assert await service.RemoveImage(remove) == runtime_pb2.RemoveImageResponse()
    listed = runtime_pb2.ListImagesRequest(filter=runtime_pb2.ImageFilter(image=spec))
    assert not (await service.ListImages(listed)).images
    assert await _code(_pull(calls, name)) is grpc.StatusCode.INVALID_ARGUMENT
