"""A scripted CRI runtime in memory, which lies, hangs, dies or behaves as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from xenpod_proto.cri.v1 import runtime_pb2 as cri

RUNTIME = "runtime.v1.RuntimeService"
_SERVICES = {one.full_name: one.methods_by_name for one in cri.DESCRIPTOR.services_by_name.values()}
LIMIT = 64 * 1024 * 1024
"""Largest message of the runtime in bytes, too large for every receiver."""

Answer: TypeAlias = "bytes | Message | Status | Callable[[bytes], Awaitable[bytes | Message]]"


@dataclass(frozen=True)
class Status(Exception):
    """A status to answer with."""

    code: grpc.StatusCode
    details: str = ""
    trailing: tuple[tuple[str, str | bytes], ...] = ()


@dataclass(frozen=True)
class Seen:
    """A received call."""

    method: str
    request: bytes
    metadata: dict[str, str | bytes]
    remaining: float | None


@dataclass
class OtherRuntime:
    """Serves one socket; ``answers`` and ``streams``, by method, override the state in memory."""

    path: Path
    name: str = "other"
    pods: dict[str, cri.PodSandbox] = field(default_factory=dict)
    containers: dict[str, cri.Container] = field(default_factory=dict)
    images: dict[str, cri.Image] = field(default_factory=dict)
    status: cri.StatusResponse = field(default_factory=lambda: ready())
    answers: dict[str, Answer] = field(default_factory=dict)
    streams: dict[str, Callable[[bytes], AsyncIterator[bytes | Message]]] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    """Methods that never answer."""
    calls: list[Seen] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    """Methods whose hanging calls were cancelled by the caller."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at each call, and each cancellation."""
    _server: Any = None
    _made: int = 0

    async def start(self) -> None:
        """Serve on a new socket."""
        self.path.unlink(missing_ok=True)
        self._server = grpc.aio.server(
            options=(("grpc.max_send_message_length", LIMIT), ("grpc.max_metadata_size", 1024 * 1024))
        )
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(name, self._handlers(methods))
                for name, methods in _SERVICES.items()
            ]
        )
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def die(self) -> None:
        """End like a killed process: calls break off, and the socket's file stays."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def asked(self, method: str) -> list[Seen]:
        """The calls of one method."""
        return [seen for seen in self.calls if seen.method == method]

    def has_pod(self, pod_id: str, name: str = "", **fields: Any) -> cri.PodSandbox:
        """Add an existing pod."""
        metadata = cri.PodSandboxMetadata(
            name=name or pod_id[:8], namespace="default", uid=f"uid-{pod_id[:8]}"
        )
        fields.setdefault("state", cri.SANDBOX_READY)
        made = cri.PodSandbox(id=pod_id, metadata=metadata, **fields)
        self.pods[pod_id] = made
        return made

    def has_container(self, container_id: str, pod_id: str, **fields: Any) -> cri.Container:
        """Add an existing container."""
        fields.setdefault("state", cri.CONTAINER_RUNNING)
        made = cri.Container(
            id=container_id, pod_sandbox_id=pod_id, metadata=cri.ContainerMetadata(name="main"), **fields
        )
        self.containers[container_id] = made
        return made

    def new_id(self, kind: str) -> str:
        """The next whole id; those of pods begin with "d", of containers with "e"."""
        self._made += 1
        return f"{kind}{self._made:x}".ljust(64, "0")

    def _handlers(self, methods: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: grpc.unary_stream_rpc_method_handler(self._stream(name))
            if method.server_streaming
            else grpc.unary_unary_rpc_method_handler(self._unary(name), response_serializer=_encoded)
            for name, method in methods.items()
        }

    def _unary(self, method: str) -> Callable[[bytes, Any], Awaitable[bytes | Message]]:
        async def call(request: bytes, context: Any) -> bytes | Message:
            await self._enter(method, request, context)
            try:
                return await self._answer(method, request)
            except Status as status:
                await context.abort(status.code, status.details, status.trailing)
                raise AssertionError from status

        return call

    def _stream(self, method: str) -> Callable[[bytes, Any], AsyncIterator[bytes]]:
        async def call(request: bytes, context: Any) -> AsyncIterator[bytes]:
            await self._enter(method, request, context)
            if method not in self.streams:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"unknown method {method}")
            try:
                async for answer in self.streams[method](request):
                    yield _encoded(answer)
            except Status as status:
                await context.abort(status.code, status.details, status.trailing)

        return call

    async def _enter(self, method: str, request: bytes, context: Any) -> None:
        metadata = {key: value for key, value in context.invocation_metadata() or ()}
        self.calls.append(Seen(method, request, metadata, context.time_remaining()))
        self.changed.set()
        if method in self.hanging:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(method)
                self.changed.set()
                raise

    async def _answer(self, method: str, request: bytes) -> bytes | Message:
        answer = self.answers.get(method)
        if isinstance(answer, Status):
            raise answer
        if isinstance(answer, bytes | Message):
            return answer
        if answer is not None:
            return await answer(request)
        known = getattr(self, f"_{method}", None)
        if known is None:
            raise Status(grpc.StatusCode.UNIMPLEMENTED, f"unknown method {method}")
        found: bytes | Message = known(request)
        return found

    # -- default behaviour

    def _Version(self, request: bytes) -> Message:
        return cri.VersionResponse(
            version="0.1.0", runtime_name=self.name, runtime_version="1", runtime_api_version="v1"
        )

    def _Status(self, request: bytes) -> Message:
        return self.status

    def _RunPodSandbox(self, request: bytes) -> Message:
        asked = cri.RunPodSandboxRequest.FromString(request)
        pod_id = self.new_id("d")
        self.pods[pod_id] = cri.PodSandbox(
            id=pod_id,
            metadata=asked.config.metadata,
            labels=asked.config.labels,
            runtime_handler=asked.runtime_handler,
        )
        return cri.RunPodSandboxResponse(pod_sandbox_id=pod_id)

    def _StopPodSandbox(self, request: bytes) -> Message:
        return cri.StopPodSandboxResponse()

    def _RemovePodSandbox(self, request: bytes) -> Message:
        gone = cri.RemovePodSandboxRequest.FromString(request).pod_sandbox_id
        self.pods.pop(gone, None)
        for one in [one for one in self.containers.values() if one.pod_sandbox_id == gone]:
            del self.containers[one.id]
        return cri.RemovePodSandboxResponse()

    def _CreateContainer(self, request: bytes) -> Message:
        asked = cri.CreateContainerRequest.FromString(request)
        made = self.has_container(self.new_id("e"), asked.pod_sandbox_id, state=cri.CONTAINER_CREATED)
        made.metadata.CopyFrom(asked.config.metadata)
        return cri.CreateContainerResponse(container_id=made.id)

    def _StartContainer(self, request: bytes) -> Message:
        asked = cri.StartContainerRequest.FromString(request)
        self.containers[asked.container_id].state = cri.CONTAINER_RUNNING
        return cri.StartContainerResponse()

    def _RemoveContainer(self, request: bytes) -> Message:
        self.containers.pop(cri.RemoveContainerRequest.FromString(request).container_id, None)
        return cri.RemoveContainerResponse()

    def _ListPodSandbox(self, request: bytes) -> Message:
        wanted = cri.ListPodSandboxRequest.FromString(request).filter.id
        items = [pod for pod in self.pods.values() if pod.id.startswith(wanted)]
        return cri.ListPodSandboxResponse(items=items)

    def _ListContainers(self, request: bytes) -> Message:
        asked = cri.ListContainersRequest.FromString(request).filter
        items = [
            one
            for one in self.containers.values()
            if one.id.startswith(asked.id) and one.pod_sandbox_id.startswith(asked.pod_sandbox_id)
        ]
        return cri.ListContainersResponse(containers=items)

    def _ListImages(self, request: bytes) -> Message:
        return cri.ListImagesResponse(images=self.images.values())

    def _ImageStatus(self, request: bytes) -> Message:
        wanted = cri.ImageStatusRequest.FromString(request).image.image
        return cri.ImageStatusResponse(image=self.images.get(wanted))

    def _PullImage(self, request: bytes) -> Message:
        name = cri.PullImageRequest.FromString(request).image.image
        self.images[name] = cri.Image(id=name, size=1)
        return cri.PullImageResponse(image_ref=name)

    def _RemoveImage(self, request: bytes) -> Message:
        self.images.pop(cri.RemoveImageRequest.FromString(request).image.image, None)
        return cri.RemoveImageResponse()


def ready(**handlers: bool) -> cri.StatusResponse:
    """A Status with both conditions true; ``handlers``: names, and whether each has user namespaces."""
    return cri.StatusResponse(
        status=cri.RuntimeStatus(
            conditions=[
                cri.RuntimeCondition(type="RuntimeReady", status=True),
                cri.RuntimeCondition(type="NetworkReady", status=True),
            ]
        ),
        runtime_handlers=[
            cri.RuntimeHandler(name=name, features=cri.RuntimeHandlerFeatures(user_namespaces=has))
            for name, has in handlers.items()
        ],
    )


def _encoded(answer: bytes | Message) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


@contextlib.asynccontextmanager
async def other_runtime(path: Path, **fields: Any) -> AsyncIterator[OtherRuntime]:
    """Run an OtherRuntime while the block runs."""
    other = OtherRuntime(path, **fields)
    await other.start()
    try:
        yield other
    finally:
        await other.die()
