"""Reads layers that this host keeps, and verifies that they still have their digests."""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from pathlib import Path

from cri.images.concurrency import CancelToken
from cri.images.digests import VerifiedChunks
from cri.images.errors import Corrupt, Damaged, Oversized, Unpackable
from cri.images.layer import layer_cache
from cri.images.layer.layers import LayerIndex, file_chunks, read_layer
from cri.images.registry.manifests import Descriptor
from cri.images.settings import ImageLimits
from cri.images.store.files import StoreFiles
from daemonkit.checkpoints import checkpoint

log = logging.getLogger(__name__)
# What a disk says of bytes that it has lost; all else is not the bytes' fault.
_LOST = (errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA)


def read_kept(
    layer: Descriptor, diff_id: str, files: StoreFiles, limits: ImageLimits, read: bool, token: CancelToken
) -> LayerIndex | None:
    """The index of a kept layer; None: there is none, or none any more, since it was damaged.

    read: the layer itself.  Else its list is believed, and who needs its bytes calls check_kept().  Corrupt,
    Unpackable, Oversized: the layer has its digest, so the image itself is at fault.
    """
    path, list_path = files.blob_path(layer.digest), files.layer_cache_path(layer.digest)
    listed = None if read else layer_cache.load(list_path, layer.digest, diff_id)
    if listed is not None and path.is_file() and path.stat().st_size == layer.size:
        return listed
    index = _read(layer, diff_id, path, limits, token)
    if index is not None:
        keep_list(layer, diff_id, files, index)
    return index


def keep_list(layer: Descriptor, diff_id: str, files: StoreFiles, index: LayerIndex) -> None:
    """Spare later images the reading of a layer that has just been verified."""
    with files.work_file(layer.digest.partition(":")[2]) as work:
        layer_cache.write(work, layer.digest, diff_id, index)
        work.rename(files.layer_cache_path(layer.digest))


def _read(
    layer: Descriptor, diff_id: str, path: Path, limits: ImageLimits, token: CancelToken
) -> LayerIndex | None:
    index: LayerIndex | None = None
    fault: Corrupt | Unpackable | Oversized | None = None
    try:
        status = path.stat()
        verified = VerifiedChunks(layer.digest, status.st_size)
        chunks = verified.passing(file_chunks(path, token))
        try:
            if status.st_size == layer.size:
                index = read_layer(chunks, layer.size, diff_id, limits)
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
    if index is None:
        cause = f"the manifest says {layer.size} bytes, and the layer of this digest has {status.st_size}"
        raise Corrupt("pull", layer.digest, f"the registry's description is wrong: {cause}")
    return index


def check_kept(digest: str, path: Path, token: CancelToken) -> None:
    """Check a kept layer.  Damaged: it no longer has its digest, and has been removed."""
    inode = 0
    try:
        status = path.stat()
        inode = status.st_ino
        verified = VerifiedChunks(digest, status.st_size)
        for _ in verified.passing(file_chunks(path, token)):
            pass
        verified.finish("this host")
    except (Corrupt, OSError) as error:
        # Another pull that found the damage has removed it already.
        if not isinstance(error, FileNotFoundError):
            _discard(path, inode, digest, error)
        raise Damaged(
            "read layer", digest, "the copy on this host is damaged", "pull the image again"
        ) from error


def _discard(path: Path, inode: int, digest: str, error: Exception) -> None:
    if isinstance(error, OSError) and error.errno not in _LOST:
        raise error
    log.warning("the copy of layer %s on this host is damaged (not the registry's): %s", digest, error)
    # Another pull may have removed it already, or put a sound one in its place.
    with suppress(FileNotFoundError):
        if path.stat().st_ino == inode:
            path.unlink()
            checkpoint("image-repair.layer-removed")
