"""Puts a version of files into a zone, in parts of bounded size: a silent zone costs one part's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exists
from protect.model.copied_files import FileChunk, FileKind, FilePart, FileTree
from protect.model.ports import HostFiles
from protect.state.runtime import ZoneRuntime
from protect.state.zone_files import FileCopy

PART_BYTES = 256 << 10
"""Bytes of contents in one part; a frame of the channel has four times the room."""
_OVERHEAD_BYTES = 128
_SPACE_BYTES = 10 << 20
"""Bytes for a growing copy: two versions of the largest size, and overhead of the file system."""
_OWN_SPACE_BYTES = 1 << 20
"""Bytes that a workload may add to a file of its own; nobody else changes the file."""


async def put_version(files: HostFiles, zone: ZoneRuntime, copy: FileCopy, tree: FileTree) -> None:
    """Put the version into the zone's copy.  FilesChanged: the tree changed after the search."""
    if copy.version == tree.version:
        return
    owner, volume = copy.key
    space = _OWN_SPACE_BYTES + 3 * tree.size_bytes if owner and copy.volume.writable else _SPACE_BYTES
    parts = list(divided(tree))
    for number, chunks in enumerate(parts):
        last = number == len(parts) - 1
        part = FilePart(
            owner=owner,
            volume=volume,
            version=tree.version,
            first=number == 0,
            last=last,
            size_bytes=space,
            map_ids=copy.volume.map_ids,
            chunks=chunks,
            contents=await files.read(zone.id, tree, chunks),
            keep=tree.keep if last else (),
        )
        try:
            await zone.agent.put_files(part)
        except Exists:
            break  # an earlier protectd has put it
        checkpoint("files.part-put")
    copy.version, copy.size_bytes = tree.version, tree.size_bytes


def divided(tree: FileTree) -> Iterator[Sequence[FileChunk]]:
    """The entries of a tree, in parts.  All links are in the last part."""
    part: list[FileChunk] = []
    left = PART_BYTES
    for entry in tree.entries:
        if entry.kind is FileKind.SYMLINK:
            continue
        offset = 0
        while True:
            count = min(left, entry.size - offset)
            more = offset + count < entry.size
            part.append(FileChunk(entry, offset, count, more))
            offset += count
            left -= count + _OVERHEAD_BYTES
            if left <= 0:
                yield part
                part, left = [], PART_BYTES
            if not more:
                break
    links = [FileChunk(entry) for entry in tree.entries if entry.kind is FileKind.SYMLINK]
    yield part + links
