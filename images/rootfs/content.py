"""Names filesystems by their content: filesystems with equal names are equal.

The name stands for all that tar2sqfs gets: each path with its inode, and for each file where in which layer
its bytes are. So it holds whatever a filesystem takes from those below (attributes of directories that its
layers only imply, files that get a further name, what is to be hidden), and nothing else of them.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Collection, Sequence
from typing import NamedTuple

from images.bounds.cancel import CancelToken
from images.bounds.digests import digest_of
from images.layer.inode import identity
from images.layer.packed import MARSHAL
from images.rootfs.plan import FilesystemPlan
from images.rootfs.stream import FilesDigest

# To be changed with the order of the stream, which convert() writes.
_FORM = b"1\n"
_NEVER = CancelToken()


class ContentId(NamedTuple):
    """value: the name; first: the digest of the files that the stream begins with, b"": there are none."""

    value: str
    first: bytes


def content_id(
    plan: FilesystemPlan,
    diff_ids: Sequence[str],
    below: Collection[str] = (),
    token: CancelToken = _NEVER,
) -> ContentId:
    """The name of the filesystem that a plan makes. diff_ids: of the image's layers, lowest first.

    below: the names of the filesystems that it lies over. None of them is given again: a stack has no
    filesystem twice, since overlayfs takes no layer twice.
    """
    running = hashlib.sha256(_FORM)
    first = b""
    for layer in plan.order:
        digest = FilesDigest(diff_ids[layer])
        for path, record in token.passing(plan.files[layer].records()):
            digest.add(path, record)
        first = first or digest.value()
        running.update(digest.value())
    for path, record in token.passing(plan.bare.records()):
        running.update(marshal.dumps((path, identity(record)), MARSHAL))
    for link in token.passing(plan.links):
        running.update(marshal.dumps(link, MARSHAL))
    value = f"sha256:{running.hexdigest()}"
    while value in below:
        value = digest_of(f"once more {value}".encode())
    return ContentId(value, first)
