"""The delegate's content store, where it is containerd: blobs by digest, one more source of a pull.

Source: containerd's gRPC API on the socket that also serves CRI.  What it gives is as untrusted as what a
registry gives: the pull checks each blob against its digest.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio

from cri.images.bounds.cancel import CancelToken
from cri.images.bounds.digests import is_digest
from cri.images.errors import Corrupt, Stalled
from cri.images.registry.manifests import Descriptor
from daemonkit.faults import Missing
from daemonkit.interceptors import fault_of
from xenpod_proto.containerd import content_pb2, content_pb2_grpc, images_pb2, images_pb2_grpc

NAMESPACE = (("containerd-namespace", "k8s.io"),)
"""Where containerd's CRI keeps everything (its constants.K8sContainerdNamespace)."""
CHUNK = 1 << 20
_ANSWER = 10.0
"""Seconds for an answer out of containerd's own database."""

T = TypeVar("T")
_Reading = grpc.aio.UnaryStreamCall[content_pb2.ReadContentRequest, content_pb2.ReadContentResponse]


async def target_of(channel: grpc.aio.Channel, name: str) -> Descriptor | None:
    """What an image's name or id stands for there; None: no such name, or a delegate without this API."""
    images = images_pb2_grpc.ImagesStub(channel)
    request = images_pb2.GetImageRequest(name=name)
    try:
        found = (await images.Get(request, metadata=NAMESPACE, timeout=_ANSWER)).image.target
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED):
            return None
        raise fault_of(error, "find image", name) from error
    if not is_digest(found.digest) or not 0 <= found.size < 1 << 62:
        raise Corrupt("find image", name, "the delegate names no proper digest for it")
    return Descriptor(found.media_type, found.digest, found.size)


class ContentSource:
    """An ``ImageSource`` over the content store; read in worker threads, while the calls are the loop's.

    Made on the event loop that the channel belongs to.  stall: the longest time for a chunk, in seconds.
    """

    resolves = False

    def __init__(self, channel: grpc.aio.Channel, name: str, stall: float) -> None:
        self.name = name
        self._content = content_pb2_grpc.ContentStub(channel)
        self._stall = stall
        self._loop = asyncio.get_running_loop()

    def manifest(self, target: str, most: int, token: CancelToken) -> tuple[bytes, str]:
        """See ImageSource; target: a digest."""
        data = bytearray()
        with self._reading(target, 0, token) as chunks:
            for chunk in chunks:
                data += chunk
                if len(data) > most:
                    hint = "images.limits.manifest_bytes in cri.toml is the limit"
                    subject = f"{target} at {self.name}"
                    raise Corrupt("pull", subject, f"the manifest is larger than {most} bytes", hint)
        return bytes(data), ""

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
            # Of no effect when the stream has ended.
            self._loop.call_soon_threadsafe(call.cancel)

    def _chunks(self, call: _Reading, digest: str, token: CancelToken) -> Iterator[bytes]:
        while chunk := self._on_loop(self._chunk(call, digest), token):
            yield chunk

    async def _open(self, digest: str, begin: int) -> _Reading:
        request = content_pb2.ReadContentRequest(digest=digest, offset=begin)
        return self._content.Read(request, metadata=NAMESPACE)

    async def _chunk(self, call: _Reading, digest: str) -> bytes:
        """At least CHUNK bytes, less at the end: few hops between the threads, and never the blob whole."""
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
        """The result of work on the event loop, for a worker thread; Cancelled when the thread is to stop."""
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
