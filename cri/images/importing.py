"""xenpod.images.v1: images from a layout or archive on this host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from cri.images import archives, names
from cri.images.archives import Found, Layout
from cri.images.catalogue import Image
from cri.images.manager import ImageManager
from cri.images.names import Reference
from cri.images.progress import Job
from cri.images.pull import Puller
from cri.images.settings import Limits
from daemonkit.faults import Invalid
from xenpod_proto.images.v1 import images_pb2, images_pb2_grpc


class ImportService(images_pb2_grpc.ImagesServicer):
    """The operations on images that CRI has no words for."""

    def __init__(self, manager: ImageManager) -> None:
        self._manager = manager

    async def Import(  # noqa: N802
        self, request: images_pb2.ImportRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> images_pb2.ImportResponse:
        """Puts every image of a layout that fits this platform into the store."""
        path = Path(request.path)
        if not path.is_absolute() or "\0" in request.path:
            raise Invalid("import", request.path[:300], "the path is not absolute")
        name = names.parse(request.name) if request.name else None
        if name is not None and name.digest is not None:
            raise Invalid("import", str(name), "an image gets a tag, not a digest")
        limits, puller = self._manager.settings.limits, self._manager.puller
        images = await self._manager.flights.shared(
            object(), str(path), lambda job: import_images(path, name, puller, limits, job)
        )
        return images_pb2.ImportResponse(images=[_message(image, given) for image, given in images])


def import_images(
    path: Path, name: Reference | None, puller: Puller, limits: Limits, job: Job
) -> list[tuple[Image, str]]:
    """The images of a layout, in the store, each with the name it got ("": none).

    name: for the one image there must then be.
    """
    layout = archives.open_layout(path, limits)
    found = [item for item in layout.images() if puller.fits(item.target.platform)]
    if not found:
        raise Invalid("import", str(path), "it holds no image for this platform")
    if name is not None and len({item.target.digest for item in found}) > 1:
        raise Invalid("import", str(path), f"it holds {len(found)} images, one name is not enough for them")
    return [_import_one(item, name, layout, puller, limits, job) for item in found]


def _import_one(
    item: Found, name: Reference | None, layout: Layout, puller: Puller, limits: Limits, job: Job
) -> tuple[Image, str]:
    reference = name or (names.parse(item.name) if item.name else None)
    data, said = layout.manifest(item.target.digest, limits.manifest_bytes, job.cancel)
    resolved = puller.from_manifest(item.target, data, said, (layout,), job.cancel)
    given = (str(reference), reference.at(item.target.digest)) if reference is not None else ()
    return puller.keep(resolved, given, (layout,), job), str(reference or "")


def _message(image: Image, name: str) -> images_pb2.ImportedImage:
    return images_pb2.ImportedImage(
        name=name, id=image.id, manifest_digest=image.manifest_digest, size_bytes=image.size
    )
