"""Images from a layout or archive on this host."""

from __future__ import annotations

from pathlib import Path

from cri.images.pull.progress import Job
from cri.images.pull.pull import Puller
from cri.images.registry import archives, names
from cri.images.registry.archives import ImageLayout, ListedImage
from cri.images.registry.names import Reference
from cri.images.settings import ImageLimits
from cri.images.store.catalogue import StoredImage
from daemonkit.faults import Invalid


def import_images(
    path: Path, name: Reference | None, puller: Puller, limits: ImageLimits, job: Job
) -> list[tuple[StoredImage, str]]:
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
    item: ListedImage,
    name: Reference | None,
    layout: ImageLayout,
    puller: Puller,
    limits: ImageLimits,
    job: Job,
) -> tuple[StoredImage, str]:
    reference = name or (names.parse(item.name) if item.name else None)
    data, said = layout.manifest(item.target.digest, limits.manifest_bytes, job.cancel)
    resolved = puller.from_manifest(item.target, data, said, (layout,), job.cancel)
    given = (str(reference), reference.at(item.target.digest)) if reference is not None else ()
    return puller.keep(resolved, given, (layout,), job), str(reference or "")
