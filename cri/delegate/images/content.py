"""Reads blobs from the delegate's content store, if it is containerd: one more source for a pull.

Source: containerd's gRPC API, on the socket that also serves CRI.  Its blobs are as untrusted as those of a
registry: the pull checks each one against its digest.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio

from daemonkit.faults import Missing
from daemonkit.rpc.interceptors import fault_of
from images.bounds.cancel import CancelToken
from images.bounds.digests import is_digest
from images.errors import Corrupt, Stalled
from images.registry.manifests import Descriptor
from images.registry.sources import GivenManifest
from xenpod_proto.containerd import content_pb2, content_pb2_grpc, images_pb2, images_pb2_grpc

NAMESPACE = (("containerd-namespace", "k8s.io"),)
"""The namespace in which containerd's CRI keeps everything (its constants.K8sContainerdNamespace)."""
CHUNK = 1 << 20
"""Bytes of one read or write of a blob."""
ANSWER = 10.0
"""Timeout in seconds of a call that containerd answers from its own database."""

T = TypeVar("T")
_Reading = grpc.aio.UnaryStreamCall[content_pb2.ReadContentRequest, content_pb2.ReadContentResponse]


async def target_of(channel: grpc.aio.Channel, name: str) -> Descriptor | None:
    """The manifest or index that a name or id stands for in containerd.

    None: containerd has no such image, or the delegate has no such API.
    """
    images = images_pb2_grpc.ImagesStub(channel)
    request = images_pb2.GetImageRequest(name=name)
    try:
        found = (await images.Get(request, metadata=NAMESPACE, timeout=ANSWER)).image.target
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
            return None
        raise fault_of(error, "find image", name) from error
    if not is_digest(found.digest) or not 0 <= found.size < 1 << 62:
        raise Corrupt("find image", name, "the delegate gives no valid digest for it")
    return Descriptor(found.media_type, found.digest, found.size)


class ContentSource:
    """An ``ImageSource`` that reads containerd's content store.

    It is created on the event loop of the channel, and used in worker threads, which run their calls on that
    loop.  stall: the longest time for a chunk, in seconds.
    """

    resolves = False

    def __init__(self, channel: grpc.aio.Channel, name: str, stall: float) -> None:
        self.name = name
        self._content = content_pb2_grpc.ContentStub(channel)
        self._stall = stall
        self._loop = asyncio.get_running_loop()

    def manifest(self, target: str, most: int, token: CancelToken) -> GivenManifest:
        """See ImageSource; target: a digest."""
        data = bytearray()
        with self._reading(target, 0, token) as chunks:
            for chunk in chunks:
                data += chunk
                if len(data) > most:
                    hint = "images.limits.manifest_bytes in cri.toml is the limit"
                    subject = f"{target} at {self.name}"
                    raise Corrupt("pull", subject, f"the manifest is larger than {most} bytes", hint)
        return GivenManifest(bytes(data))

    @contextmanager
    def blob(self, descriptor: Descriptor, token: CancelToken, begin: int = 0) -> Iterator[Iterator[bytes]]:
        """See ImageSource."""
        with self._reading(descriptor.digest, begin, token) as chunks:
            yield chunks

    @contextmanager
    def _reading(self, digest: str, begin: int, token: CancelToken) -> Iterator[Iterator[bytes]]:
        call = self._on_loop(self._open(digest, begin), token)
        try:
            yield self._chunks(call, digest, token)
        finally:
            # This has no effect on a stream that has ended.
            self._loop.call_soon_threadsafe(call.cancel)

    def _chunks(self, call: _Reading, digest: str, token: CancelToken) -> Iterator[bytes]:
        while chunk := self._on_loop(self._chunk(call, digest), token):
            yield chunk

    async def _open(self, digest: str, begin: int) -> _Reading:
        request = content_pb2.ReadContentRequest(digest=digest, offset=begin)
        return self._content.Read(request, metadata=NAMESPACE)

    async def _chunk(self, call: _Reading, digest: str) -> bytes:
        """The next bytes of a blob: at least CHUNK, fewer at its end, so that threads hop rarely."""
        parts: list[bytes] = []
        size = 0
        subject = f"{digest} at {self.name}"
        try:
            async with asyncio.timeout(self._stall):
                while size < CHUNK:
                    piece = await call.read()
                    if not isinstance(piece, content_pb2.ReadContentResponse):
                        break
                    parts.append(piece.data)
                    size += len(piece.data)
        except TimeoutError:
            raise Stalled("pull", subject, f"{size} bytes in {self._stall:.0f} s") from None
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
                raise Missing("pull", subject, "it does not keep this part of the image") from error
            raise fault_of(error, "pull", subject) from error
        return b"".join(parts)

    def _on_loop(self, work: Coroutine[Any, Any, T], token: CancelToken) -> T:
        """Run a coroutine on the event loop, from a worker thread.  Cancelled: the thread is to stop."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)

        def cancel() -> None:
            future.cancel()

        try:
            with token.unblocking(cancel):
                return future.result()
        except concurrent.futures.CancelledError:
            token.check()
            raise
        finally:
            cancel()
