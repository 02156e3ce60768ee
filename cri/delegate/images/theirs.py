"""The client of the delegate's ImageService.  Its lists are untrusted, and remembered for a while."""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError, Message

from cri.delegate.link import IMAGES, Delegate, Metadata, error_text
from cri.delegate.untrusted import MOST_ITEMS, TOO_MANY, has_more_items, read_message
from daemonkit.faults import Broken, Fault, TooLate, Unreachable
from xenpod_proto.cri.v1 import runtime_pb2 as cri

M = TypeVar("M", bound=Message)


class DelegateImages:
    """The delegate's images.  While it is known not to answer, calls that only read do not wait for it.

    AioRpcError is its own status; Unreachable, TooLate, Broken, Refused: see ``cri.delegate.link``.
    """

    def __init__(self, delegate: Delegate, keep: float) -> None:
        self.name = delegate.endpoint
        self._delegate = delegate
        self._keep = keep
        self._heard_at = 0.0
        self._listed: dict[str, cri.Image] | None = None
        self._changes = 0
        """Number of pulls so far: a list asked for before one may lack its image, and is not remembered."""
        self._filesystems: tuple[float, cri.ImageFsInfoResponse] | None = None

    async def status(
        self, request: cri.ImageStatusRequest, metadata: Metadata = ()
    ) -> cri.ImageStatusResponse:
        """ImageStatus; the answer has no image if the delegate has none."""
        return await self._read("ImageStatus", request, cri.ImageStatusResponse, metadata)

    async def meant(self, name: str, metadata: Metadata) -> str:
        """The id of the image that a name means; "" for none, or when the delegate has never been there."""
        request = cri.ImageStatusRequest(image=cri.ImageSpec(image=name))
        try:
            return (await self.status(request, metadata)).image.id
        except (Unreachable, TooLate):
            if self._delegate.ever_answered:
                raise
            return ""

    async def find(self, name: str) -> cri.Image | None:
        """Find an image by id or name."""
        request = cri.ImageStatusRequest(image=cri.ImageSpec(image=name))
        answer = await self.status(request)
        return answer.image if answer.image.id else None

    async def images(self, metadata: Metadata = ()) -> list[cri.Image]:
        """All images, each id once; those of the last list while the delegate does not answer.

        Unreachable when that list is too old: one without its images would say that they are gone.
        """
        asked_at, changes = time.monotonic(), self._changes
        try:
            answer = await self._read("ListImages", cri.ListImagesRequest(), cri.ListImagesResponse, metadata)
            if len(answer.images) > MOST_ITEMS:
                raise Broken("ListImages", self.name, TOO_MANY)
        except (grpc.aio.AioRpcError, Fault) as error:
            return list(self._recalled(error).values())
        found: dict[str, cri.Image] = {}
        for image in answer.images:
            if image.id:
                found.setdefault(image.id, image)
        if changes == self._changes:
            self._listed, self._heard_at = found, asked_at
        return list(found.values())

    async def filesystems(self, metadata: Metadata = ()) -> cri.ImageFsInfoResponse | None:
        """ImageFsInfo; the last answer while the delegate does not answer, None if that is too old."""
        request, kind = cri.ImageFsInfoRequest(), cri.ImageFsInfoResponse
        now = time.monotonic()
        try:
            self._filesystems = (now, await self._read("ImageFsInfo", request, kind, metadata))
        except (grpc.aio.AioRpcError, Fault):
            if self._filesystems is None or now - self._filesystems[0] > self._keep:
                return None
        return self._filesystems[1]

    async def remove(self, name: str, timeout: float | None, metadata: Metadata = ()) -> None:
        """RemoveImage, within ``timeout`` seconds; removing an image that is not there succeeds.

        containerd answers once the space is free, so a slow answer does not mean that it is away.  While it
        does not answer, the removal of an image that its last list did not have succeeds.
        """
        request = cri.RemoveImageRequest(image=cri.ImageSpec(image=name))
        try:
            self._is_there("RemoveImage")
            data = request.SerializeToString()
            answer = await self._delegate.call(f"{IMAGES}RemoveImage", data, timeout, metadata)
        except (Unreachable, TooLate) as fault:
            if name in self._recalled(fault):
                raise
            return
        parsed_answer(cri.RemoveImageResponse, answer, "RemoveImage", self.name)
        if self._listed is not None:
            self._listed.pop(name, None)

    async def pull(self, raw: bytes, timeout: float | None, metadata: Metadata = ()) -> bytes:
        """PullImage; request and answer are encoded.

        Unreachable when the delegate has answered nothing at all for ``delegate.keep`` seconds: the kubelet
        sets no deadline, and by default begins no other pull, not even a zone's, before this one ends.
        """
        call = self._delegate.call(f"{IMAGES}PullImage", raw, timeout, metadata)
        pull = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait((pull,), timeout=self._keep))[0]:
                if self._delegate.silent() >= self._keep:
                    self._is_there("PullImage")
            return pull.result()
        finally:
            pull.cancel()
            # The last list may lack the image.
            self._listed = None
            self._changes += 1

    async def _read(self, method: str, request: Message, kind: type[M], metadata: Metadata) -> M:
        delegate = self._delegate
        self._is_there(method)
        try:
            path = f"{IMAGES}{method}"
            data = await delegate.call(path, request.SerializeToString(), delegate.timeout, metadata)
        except (Unreachable, TooLate) as fault:
            delegate.lost(error_text(fault))
            raise
        return parsed_answer(kind, data, method, self.name)

    def _is_there(self, method: str) -> None:
        if trouble := self._delegate.trouble:
            raise Unreachable(method, self.name, trouble, "is that runtime running?")

    def _recalled(self, error: Exception) -> dict[str, cri.Image]:
        """The images of the last list; raises ``error`` when there is none, or it is too old.

        A delegate that has never been there has no images.
        """
        age = time.monotonic() - self._heard_at
        if not self._delegate.ever_answered:
            return {}
        if self._listed is not None and age <= self._keep:
            return self._listed
        raise error


def parsed_answer(kind: type[M], untrusted: bytes, method: str, name: str) -> M:
    """Decode an answer of the delegate; Broken when it cannot be decoded, or has too many items."""
    try:
        if has_more_items(untrusted):
            raise Broken(method, name, TOO_MANY)
        message: Any = read_message(kind, untrusted)[1]
    except DecodeError:
        raise Broken(method, name, "its answer is not CRI's") from None
    return message  # type: ignore[no-any-return]
