"""Joins the answers of two image stores: each image once, each filesystem once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cri.delegate.owners import Owner
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_LARGEST_UINT64 = 2**64 - 1


def united(ours: cri.Image, theirs: cri.Image) -> cri.Image:
    """Join one image that both sides have.  Its size is the sum, since a removal frees both copies."""
    one = cri.Image()
    one.CopyFrom(theirs)
    one.MergeFrom(ours)
    # Merging has only concatenated the lists, and has taken our size and our pinned.
    for field in ("repo_tags", "repo_digests"):
        both = dict.fromkeys((*getattr(ours, field), *getattr(theirs, field)))
        del getattr(one, field)[:]
        getattr(one, field).extend(both)
    one.size = _sum(ours.size, theirs.size)
    one.pinned = ours.pinned or theirs.pinned
    return one


def _sum(ours: int, theirs: int) -> int:
    """The sum of two uint64, at most the largest one: an absurd size must not fail the whole list."""
    return min(ours + theirs, _LARGEST_UINT64)


def joined(
    ours: Iterable[cri.Image], theirs: Iterable[cri.Image], side: Callable[[str], Owner]
) -> list[cri.Image]:
    """All images, each id once and each tag once; ``side`` decides which image has a tag of both."""
    mine = {image.id: image for image in ours}
    other = {image.id: image for image in theirs}
    _settle(mine, other, side)
    both = {key: united(one, other[key]) if key in other else one for key, one in mine.items()}
    return [*both.values(), *(one for key, one in other.items() if key not in mine)]


def _settle(mine: dict[str, cri.Image], other: dict[str, cri.Image], side: Callable[[str], Owner]) -> None:
    """Where a tag means different images on the two sides, take it from the one that lost it."""
    own = {tag: key for key, image in mine.items() for tag in image.repo_tags}
    for key, image in list(other.items()):
        for tag in [tag for tag in image.repo_tags if own.get(tag, key) != key]:
            where, loser = (other, key) if side(tag) is Owner.OURS else (mine, own[tag])
            where[loser] = _without(where[loser], tag)


def _without(image: cri.Image, tag: str) -> cri.Image:
    kept = cri.Image()
    kept.CopyFrom(image)
    del kept.repo_tags[:]
    kept.repo_tags.extend(one for one in image.repo_tags if one != tag)
    return kept


class Disk(NamedTuple):
    """The filesystem of a path: its device number, and the used part (0 to 1) of space or inodes."""

    device: int
    used: float


def disk_of(path: str) -> Disk | None:
    """The filesystem of a path, ``used`` by what is fuller; None if it cannot be read.  Blocks."""
    try:
        disk, device = os.statvfs(path), os.stat(path).st_dev
    except (OSError, ValueError):
        return None
    space = 1 - disk.f_bavail / disk.f_blocks if disk.f_blocks else 0.0
    inodes = 1 - disk.f_favail / disk.f_files if disk.f_files else 0.0
    return Disk(device, max(space, inodes))


def filesystems(
    ours: cri.ImageFsInfoResponse,
    theirs: cri.ImageFsInfoResponse,
    look: Callable[[str], Disk | None] = disk_of,
) -> cri.ImageFsInfoResponse:
    """The filesystems of both stores, each once.  The fullest comes first: the kubelet reads only that."""
    return cri.ImageFsInfoResponse(
        image_filesystems=_merged([*ours.image_filesystems, *theirs.image_filesystems], look),
        container_filesystems=_merged([*ours.container_filesystems, *theirs.container_filesystems], look),
    )


def _merged(
    entries: Sequence[cri.FilesystemUsage], look: Callable[[str], Disk | None]
) -> list[cri.FilesystemUsage]:
    found: dict[object, tuple[float, cri.FilesystemUsage]] = {}
    for entry in entries:
        path = entry.fs_id.mountpoint
        disk = look(path)
        key = path if disk is None else disk.device
        if key not in found:
            kept = cri.FilesystemUsage()
            kept.CopyFrom(entry)
            found[key] = (0.0 if disk is None else disk.used, kept)
            continue
        sum_up = found[key][1]
        sum_up.used_bytes.value = _sum(sum_up.used_bytes.value, entry.used_bytes.value)
        sum_up.inodes_used.value = _sum(sum_up.inodes_used.value, entry.inodes_used.value)
    return [entry for _, entry in sorted(found.values(), key=lambda pair: -pair[0])]
