"""Reads layers stored on this host, and verifies their digests."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from daemonkit.checkpoints import checkpoint
from images.bounds.cancel import CancelToken
from images.bounds.digests import VerifiedChunks
from images.image_errors import Corrupt, Damaged, Oversized, Unpackable
from images.layer.layers import Cost, file_chunks
from images.registry.manifests import Descriptor
from images.store.image_files import StoreFiles
from images.worker.layer_workers import read_layer
from images.worker.workers import LayerWorkers

log = logging.getLogger(__name__)
# Error numbers of a disk that has lost data; any other error does not mean damage.
_LOST = (errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA)


class ListedLayer(NamedTuple):
    """A stored layer with the list of its entries.

    cost: None if the list is old and unread; verified: whether the layer's bytes have just been verified.
    """

    cost: Cost | None
    verified: bool


class NewList:
    """A list for a worker to fill while a layer is read."""

    def __init__(self, work: Path, final: Path) -> None:
        self._work = work
        self._final = final
        self.file = work.open("xb")

    def keep(self) -> None:
        """Keep the list: later images then need not read the layer."""
        self.file.flush()
        self._work.rename(self._final)


@contextmanager
def listing(layer: Descriptor, files: StoreFiles) -> Iterator[NewList]:
    """A new list for a layer; deleted after the body unless kept."""
    with files.work_file(layer.digest.partition(":")[2]) as work:
        new = NewList(work, files.layer_cache_path(layer.digest))
        with new.file:
            yield new


def read_kept(
    layer: Descriptor, diff_id: str, files: StoreFiles, workers: LayerWorkers, read: bool, token: CancelToken
) -> ListedLayer | None:
    """A stored layer; None if the store has none, or had to remove a damaged copy.

    read: read the layer itself. Otherwise an existing list is enough, and a reader of the bytes calls
    check_kept(). Corrupt, Unpackable, Oversized: the layer has the right digest; the image itself is at
    fault.
    """
    path, list_path = files.blob_path(layer.digest), files.layer_cache_path(layer.digest)
    if not read and list_path.is_file() and path.is_file() and path.stat().st_size == layer.size:
        return ListedLayer(None, False)
    with listing(layer, files) as new:
        cost = _read_layer(layer, diff_id, path, new.file, workers, token)
        if cost is None:
            return None
        new.keep()
    return ListedLayer(cost, True)


def _read_layer(
    layer: Descriptor, diff_id: str, path: Path, new: BinaryIO, workers: LayerWorkers, token: CancelToken
) -> Cost | None:
    cost: Cost | None = None
    fault: Corrupt | Unpackable | Oversized | None = None
    try:
        status = path.stat()
        verified = VerifiedChunks(layer.digest, status.st_size)
        chunks = verified.passing(file_chunks(path, token))
        try:
            if status.st_size == layer.size:
                cost = read_layer(workers, chunks, (layer.digest, layer.size), diff_id, new, token)
        except (Corrupt, Unpackable, Oversized) as found:
            fault = found
        for _ in chunks:
            pass
        verified.finish("this host")
    except FileNotFoundError:
        return None
    except (Corrupt, OSError) as error:
        _discard(path, status.st_ino, layer.digest, error)
        return None
    if fault is not None:
        raise fault
    if cost is None:
        cause = f"the manifest says {layer.size} bytes, and the layer of this digest has {status.st_size}"
        raise Corrupt("pull", layer.digest, f"the registry's description is wrong: {cause}")
    return cost


def check_kept(digest: str, path: Path, token: CancelToken) -> None:
    """Verify a stored layer. Raises Damaged and removes the layer if the digest is wrong."""
    inode = 0
    try:
        status = path.stat()
        inode = status.st_ino
        verified = VerifiedChunks(digest, status.st_size)
        for _ in verified.passing(file_chunks(path, token)):
            pass
        verified.finish("this host")
    except (Corrupt, OSError) as error:
        # Another pull may have removed the damaged layer already.
        if not isinstance(error, FileNotFoundError):
            _discard(path, inode, digest, error)
        raise Damaged(
            "read layer", digest, "the copy on this host is damaged", "pull the image again"
        ) from error


def _discard(path: Path, inode: int, digest: str, error: Exception) -> None:
    if isinstance(error, OSError) and error.errno not in _LOST:
        raise error
    log.warning("the copy of layer %s on this host is damaged (not the registry's): %s", digest, error)
    # Another pull may have removed or replaced the layer already.
    with suppress(FileNotFoundError):
        if path.stat().st_ino == inode:
            path.unlink()
            checkpoint("image-repair.layer-removed")
