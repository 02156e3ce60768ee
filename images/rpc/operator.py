"""The gRPC service xenpod.images.v1: image operations beyond CRI, for operators."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from daemonkit.faults import Invalid, Missing
from images.layer import losses
from images.manager import ImageManager
from images.pull.progress import Progress, Snapshot
from images.registry import names
from images.registry.credentials import ANONYMOUS, Credentials
from images.rpc.messages import (
    export_message,
    image_message,
    kernel_message,
    pull_message,
    repair_message,
)
from images.store.catalogue import StoredImage
from images.store.export import Wanted
from images.store.filters import Filters
from xenpod_proto.images.v1 import images_pb2 as pb
from xenpod_proto.images.v1 import images_pb2_grpc

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
# Seconds between two samples of a pull's progress.
PACE_SECONDS = 0.2


class OperatorService(images_pb2_grpc.ImagesServicer):
    """One method for each RPC; failures are raised as Faults."""

    def __init__(self, manager: ImageManager) -> None:
        self._manager = manager
        self._store = manager.store

    async def Import(  # noqa: N802
        self, request: pb.ImportRequest, context: _Context
    ) -> pb.ImportResponse:
        """Import every image of a layout that fits this platform."""
        path = Path(request.path)
        if not path.is_absolute() or "\0" in request.path:
            raise Invalid("import", request.path[:300], "the path is not absolute")
        name = names.parse(request.name) if request.name else None
        if name is not None and name.digest is not None:
            raise Invalid("import", str(name), "an image gets a tag, not a digest")
        images = await self._manager.import_layout(path, name)
        imported = [
            pb.ImportedImage(
                name=given, id=image.id, manifest_digest=image.manifest_digest, size_bytes=image.size
            )
            for image, given in images
        ]
        return pb.ImportResponse(images=imported)

    async def Pull(  # noqa: N802
        self, request: pb.PullRequest, context: _Context
    ) -> AsyncIterator[pb.PullEvent]:
        """Pull an image; sends each change of the progress, then the image."""
        reference = names.parse(request.name)
        secret = Credentials(request.username, request.password) if request.username else ANONYMOUS
        told: list[Progress] = []
        pulling = asyncio.create_task(self._manager.pull(reference, secret, told.append))
        before: Snapshot | None = None
        try:
            while not pulling.done():
                now = told[0].snapshot() if told else None
                if now is not None and now != before:
                    before = now
                    yield pb.PullEvent(progress=pull_message(now))
                await asyncio.wait({pulling}, timeout=PACE_SECONDS)
            image = await pulling
        finally:
            # The caller may be gone: cancel the pull, unless another caller waits.
            pulling.cancel()
        yield pb.PullEvent(image=self._message(image))

    async def WatchPulls(  # noqa: N802
        self, request: pb.WatchPullsRequest, context: _Context
    ) -> AsyncIterator[pb.WatchPullsEvent]:
        """Send all pulls, and again at each change."""
        pulls = self._manager.pulls
        before: list[Snapshot] | None = None
        while True:
            change, now = pulls.next_change(), pulls.snapshots()
            if now != before:
                before = now
                yield pb.WatchPullsEvent(pulls=[pull_message(snapshot) for snapshot in now])
            if now:
                await asyncio.sleep(PACE_SECONDS)
            else:
                await change.wait()

    async def List(  # noqa: N802
        self, request: pb.ListRequest, context: _Context
    ) -> pb.ListResponse:
        """List all matching images."""
        filters = Filters(request.filters, time.time_ns())
        messages = [
            image_message(image, holders)
            for image in self._store.images()
            if filters.fit(image, bool(holders := self._store.holders(image.id)))
        ]
        return pb.ListResponse(images=messages, filtered=bool(request.filters))

    async def Inspect(  # noqa: N802
        self, request: pb.InspectRequest, context: _Context
    ) -> pb.InspectResponse:
        """Show an image and its stored parts."""
        image = self._store.resolve(_named(request.image))
        row, stack = self._store.stored(image)
        return pb.InspectResponse(
            image=self._message(image),
            config=row.config,
            manifest=row.manifest,
            layers=[pb.StoredLayer(digest=digest, size_bytes=size) for digest, size in row.layers],
            filesystems=[
                pb.StoredFilesystem(
                    chain_id=one.chain_id,
                    path=str(self._store.files.fs_path(one.chain_id)),
                    type=one.type,
                    size_bytes=one.bytes,
                    digest=one.digest,
                )
                for one in stack
            ],
            losses=[
                pb.Loss(kind=kind, text=losses.TEXTS.get(kind, kind), files=files)
                for kind, files in image.lost.items()
            ],
        )

    async def Remove(  # noqa: N802
        self, request: pb.RemoveRequest, context: _Context
    ) -> pb.RemoveResponse:
        """Remove an image; Missing if no image matches."""
        image = self._store.resolve(_named(request.image))
        message = self._message(image)
        await self._manager.remove(image.id)
        return pb.RemoveResponse(image=message, freed=not self._store.has(image.id))

    async def Verify(  # noqa: N802
        self, request: pb.VerifyRequest, context: _Context
    ) -> AsyncIterator[pb.VerifyEvent]:
        """Check images: one event for each image once read, after its repair if requested."""
        secret = Credentials(request.username, request.password) if request.username else ANONYMOUS
        asked = [self._store.resolve(_named(text)) for text in request.images] or self._store.images()
        for image in asked:
            try:
                event = await self._verified(image, secret if request.repair else None)
            except Missing:
                continue  # removed after the listing
            yield event

    async def _verified(self, image: StoredImage, repaired_by: Credentials | None) -> pb.VerifyEvent:
        found = await self._manager.verify(image)
        event = pb.VerifyEvent(image=self._message(image), faults=found.faults, read_bytes=found.read)
        if repaired_by is not None and found.faults:
            repairs, now = await self._manager.repair(image, found, repaired_by)
            event.repairs.extend(map(repair_message, repairs))
            event.remaining.extend(now.faults)
            event.read_bytes += now.read
        return event

    async def Collect(  # noqa: N802
        self, request: pb.CollectRequest, context: _Context
    ) -> pb.CollectResponse:
        """Remove unused images."""
        return await self._remove_unused(lambda _: True, request.dry_run, unfinished=True)

    async def Prune(  # noqa: N802
        self, request: pb.PruneRequest, context: _Context
    ) -> pb.CollectResponse:
        """Remove unused images that match; images with a tag only with ``all`` or a dangling filter."""
        filters = Filters(request.filters, time.time_ns())
        every = request.all or any(text.startswith("dangling=") for text in request.filters)

        def fits(image: StoredImage) -> bool:
            return (every or not image.repo_tags) and filters.fit(image, used=False)

        return await self._remove_unused(fits, request.dry_run)

    async def Tag(  # noqa: N802
        self, request: pb.TagRequest, context: _Context
    ) -> pb.TagResponse:
        """Add a name to an image."""
        image = self._store.resolve(_named(request.image))
        name = names.parse(_named(request.name))
        if name.digest is not None:
            raise Invalid("tag", str(name), "an image gets a tag, not a digest")
        before = await self._manager.tag(image, name)
        message = self._message(self._store.resolve(image.id))
        return pb.TagResponse(image=message, name=str(name), taken_from=before)

    async def Untag(  # noqa: N802
        self, request: pb.UntagRequest, context: _Context
    ) -> pb.UntagResponse:
        """Remove a name."""
        name = names.parse(_named(request.name))
        image = await self._manager.untag(name)
        return pb.UntagResponse(image=self._message(image), name=str(name))

    async def Export(  # noqa: N802
        self, request: pb.ExportRequest, context: _Context
    ) -> AsyncIterator[pb.ExportEvent]:
        """Send the images as the files of a layout."""
        wanted: dict[str, Wanted] = {}
        for text in request.images or [""]:
            image = self._store.resolve(_named(text))
            known = wanted.get(image.id, Wanted(image, ()))
            wanted[image.id] = Wanted(image, tuple(dict.fromkeys((*known.tags, *_tags(image, text)))))
        async with aclosing(self._manager.export(tuple(wanted.values()))) as pieces:
            async for piece in pieces:
                yield export_message(piece)

    async def ListKernels(  # noqa: N802
        self, request: pb.ListKernelsRequest, context: _Context
    ) -> pb.ListKernelsResponse:
        """List all kernel images; a faulty image carries its fault."""
        found = await self._manager.kernels.listed()
        holders = self._store.holders
        return pb.ListKernelsResponse(kernels=[kernel_message(one, holders(one.image.id)) for one in found])

    async def _remove_unused(
        self, fits: Callable[[StoredImage], bool], dry_run: bool, unfinished: bool = False
    ) -> pb.CollectResponse:
        """Remove matching unused images, or only list them; unfinished: layers of unfinished pulls, too."""
        layers = self._store.unfinished
        if dry_run:
            return pb.CollectResponse(
                removed=[self._message(image) for image in self._store.unused(fits)],
                unfinished_bytes=await self._manager.run(layers.bytes) if unfinished else 0,
            )
        before = await self._manager.usage()
        removed = await self._manager.run(lambda: self._store.remove_unused(fits))
        given_back = await self._manager.run(layers.give_back) if unfinished else 0
        after = await self._manager.usage()
        return pb.CollectResponse(
            removed=[image_message(image, []) for image in removed],
            freed_bytes=max(0, before.bytes - after.bytes),
            unfinished_bytes=given_back,
        )

    def _message(self, image: StoredImage) -> pb.Image:
        return image_message(image, self._store.holders(image.id))


def _named(text: str) -> str:
    if not text:
        raise Invalid("read request", "", "no image is named")
    return text


def _tags(image: StoredImage, asked: str) -> Sequence[str]:
    """The tags to export: the requested tag, or all tags if the request has an id or a digest."""
    try:
        name = str(names.parse(asked))
    except Invalid:
        return image.repo_tags
    return (name,) if name in image.repo_tags else image.repo_tags
