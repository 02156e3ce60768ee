"""Names filesystems by content: filesystems with equal names are equal.

The name covers all input of tar2sqfs: each path with its inode, and for each file the layer and the place of
its bytes. The name therefore covers everything that a filesystem takes from lower filesystems (attributes of
implied directories, files with a further name, whiteouts), but nothing else of the lower filesystems.
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

# Change together with the order of the stream in convert().
_FORM = b"1\n"
_NEVER = CancelToken()


class ContentId(NamedTuple):
    """value: the name; first: digest of the first files in the stream, b"": no files."""

    value: str
    first: bytes


def content_id(
    plan: FilesystemPlan,
    diff_ids: Sequence[str],
    below: Collection[str] = (),
    token: CancelToken = _NEVER,
) -> ContentId:
    """The name of a planned filesystem. diff_ids: of the image's layers, lowest first.

    below: names of the lower filesystems. The result differs from all names below, because overlayfs accepts
    no filesystem twice in one stack.
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
