"""Writes an image of ours into the delegate's content store, if it is containerd.

containerd's CRI learns of the new name from containerd's own events, gives the image its id, and unpacks it
when its first container is created.  Sources: containerd's docs/content-flow.md, docs/garbage-collection.md,
and its internal/cri (UpdateImage, WithNewSnapshot).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.field_mask_pb2 import FieldMask

from cri.delegate.images.content import ANSWER, CHUNK, NAMESPACE
from cri.state.names import new_id
from daemonkit.faults import Broken, TooLate
from daemonkit.rpc.interceptors import fault_of
from daemonkit.tasks import complete
from images.registry.manifests import Descriptor
from images.store.lending import LentImage
from xenpod_proto.containerd import (
    content_pb2,
    content_pb2_grpc,
    images_pb2,
    images_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
)

_OPERATION = "hand over image"
_LEASE = 3600.0
"""Seconds after which containerd removes what a daemon of ours wrote before it was killed."""
_GC_LABEL = "containerd.io/gc.ref.content."
_Metadata = tuple[tuple[str, str], ...]
_Call: TypeAlias = (
    "grpc.aio.StreamStreamCall[content_pb2.WriteContentRequest, content_pb2.WriteContentResponse]"
)


async def hand_over(channel: grpc.aio.Channel, image: LentImage, names: Sequence[str], stall: float) -> None:
    """Write the blobs that the content store lacks, then create the names; a name that exists is kept.

    Faults: containerd's own errors; TooLate: a chunk took longer than ``stall`` seconds.
    """
    subject = image.config.digest
    try:
        async with _lease(channel) as metadata:
            content = _Content(channel, metadata, stall)
            for layer, path in image.layers:
                await content.write(layer, _file(path))
            await content.write(image.config, _bytes(image.config_bytes))
            await content.write(image.target, _bytes(image.manifest))
            # Also for a manifest that was there already: its labels may be missing.
            await content.label(image.target.digest, _children(image))
            for name in names:
                await _create_name(channel, name, image.target, metadata)
    except grpc.aio.AioRpcError as error:
        raise fault_of(error, _OPERATION, subject) from error


class _Content:
    def __init__(self, channel: grpc.aio.Channel, metadata: _Metadata, stall: float) -> None:
        self._stub = content_pb2_grpc.ContentStub(channel)
        # grpc's types do not cover calls whose requests are written one by one.
        self._write: Any = channel.stream_stream(
            "/containerd.services.content.v1.Content/Write",
            request_serializer=content_pb2.WriteContentRequest.SerializeToString,
            response_deserializer=content_pb2.WriteContentResponse.FromString,
        )
        self._metadata = metadata
        self._stall = stall

    async def write(self, blob: Descriptor, chunks: AsyncIterator[bytes]) -> None:
        """Write one blob, which containerd checks against its digest; one that exists joins the lease."""
        call: _Call = self._write(metadata=self._metadata)
        try:
            # A new message for each chunk: a reused one keeps the memory of its old data until it is freed.
            request = partial(
                content_pb2.WriteContentRequest,
                ref=f"xenpod-{new_id()}",
                total=blob.size,
                expected=blob.digest,
            )
            await self._exchange(call, request(action=content_pb2.WRITE), blob)
            offset = 0
            async for chunk in chunks:
                written = request(action=content_pb2.WRITE, offset=offset, data=chunk)
                await self._exchange(call, written, blob)
                offset += len(chunk)
            await self._exchange(call, request(action=content_pb2.COMMIT, offset=offset), blob)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
                raise
        finally:
            call.cancel()

    async def label(self, digest: str, labels: dict[str, str]) -> None:
        """Set labels of a blob."""
        info = content_pb2.Info(digest=digest, labels=labels)
        mask = FieldMask(paths=[f"labels.{key}" for key in labels])
        request = content_pb2.UpdateRequest(info=info, update_mask=mask)
        await self._stub.Update(request, metadata=self._metadata, timeout=ANSWER)

    async def _exchange(
        self,
        call: _Call,
        request: content_pb2.WriteContentRequest,
        blob: Descriptor,
    ) -> None:
        try:
            async with asyncio.timeout(self._stall):
                with suppress(asyncio.InvalidStateError):  # the call has ended, and read() says why
                    await call.write(request)
                if not isinstance(await call.read(), content_pb2.WriteContentResponse):
                    raise Broken(_OPERATION, blob.digest, "the delegate ended the write without an answer")
        except TimeoutError:
            cause = f"no answer for {self._stall:.0f} s"
            raise TooLate(_OPERATION, blob.digest, cause) from None


@asynccontextmanager
async def _lease(channel: grpc.aio.Channel) -> AsyncIterator[_Metadata]:
    """Metadata of a lease: what is written with it is not collected while the block runs."""
    leases, lease = leases_pb2_grpc.LeasesStub(channel), f"xenpod-{new_id()}"
    expires = datetime.fromtimestamp(time.time() + _LEASE, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    request = leases_pb2.CreateRequest(id=lease, labels={"containerd.io/gc.expire": expires})
    await leases.Create(request, metadata=NAMESPACE, timeout=ANSWER)
    try:
        yield (*NAMESPACE, ("containerd-lease", lease))
    finally:
        await complete(_end_lease(leases, lease))


async def _end_lease(leases: leases_pb2_grpc.LeasesAsyncStub, lease: str) -> None:
    try:
        await leases.Delete(leases_pb2.DeleteRequest(id=lease), metadata=NAMESPACE, timeout=ANSWER)
    except grpc.aio.AioRpcError:
        return  # it expires


async def _create_name(channel: grpc.aio.Channel, name: str, target: Descriptor, metadata: _Metadata) -> None:
    descriptor = images_pb2.Descriptor(media_type=target.media_type, digest=target.digest, size=target.size)
    image = images_pb2.Image(name=name, target=descriptor)
    try:
        images = images_pb2_grpc.ImagesStub(channel)
        request = images_pb2.CreateImageRequest(image=image)
        await images.Create(request, metadata=metadata, timeout=ANSWER)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
            raise


def _children(image: LentImage) -> dict[str, str]:
    """Labels of a manifest with which containerd keeps the config and the layers as long as the manifest."""
    layers = {f"{_GC_LABEL}l.{number}": layer.digest for number, (layer, _) in enumerate(image.layers)}
    return {f"{_GC_LABEL}config": image.config.digest} | layers


async def _bytes(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


async def _file(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb", 0)
    try:
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk
    finally:
        file.close()
