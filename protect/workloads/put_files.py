"""Put a version of files into a zone, in parts of a bounded size: so much memory does a silent zone cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Exists
from protect.model.files import FileChunk, FileKind, FilePart, FileTree
from protect.state.files import FileCopy
from protect.state.manager import ZoneManager
from protect.state.runtime import ZoneRuntime

PART = 256 << 10
"""Bytes of contents in one part; a frame of the channel has room for four times as much."""
_OVERHEAD = 128
_SPACE = 10 << 20
"""Of a copy, which may grow: two versions of the largest, and what a file system needs."""
_OWN_SPACE = 1 << 20
"""What a workload may add to a file of its own, which nobody else changes."""


async def put(manager: ZoneManager, zone: ZoneRuntime, copy: FileCopy, tree: FileTree) -> None:
    """Have the zone's copy be this version.  FilesChanged when the tree is not any more what was found."""
    if copy.version == tree.version:
        return
    owner, volume = copy.key
    space = _OWN_SPACE + 3 * tree.size_bytes if owner and copy.volume.writable else _SPACE
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
            contents=await manager.files.read(zone.id, tree, chunks),
            keep=tree.keep if last else (),
        )
        try:
            await zone.agent.put_files(part)
        except Exists:
            break  # an earlier protectd has put it
        checkpoint("files.part-put")
    copy.version, copy.size_bytes = tree.version, tree.size_bytes


def divided(tree: FileTree) -> Iterator[Sequence[FileChunk]]:
    """The entries of a tree, in parts.  Links come together, in the last one."""
    part: list[FileChunk] = []
    room = PART
    for entry in tree.entries:
        if entry.kind is FileKind.SYMLINK:
            continue
        offset = 0
        while True:
            count = min(room, entry.size - offset)
            more = offset + count < entry.size
            part.append(FileChunk(entry, offset, count, more))
            offset += count
            room -= count + _OVERHEAD
            if room <= 0:
                yield part
                part, room = [], PART
            if not more:
                break
    links = [FileChunk(entry) for entry in tree.entries if entry.kind is FileKind.SYMLINK]
    yield part + links
