"""Divides an image into filesystems: a stack of parts, each of one or several layers.

The rule goes through the layers from the lowest up and never back. Images that begin with the same layers
therefore share the filesystems of these layers. A large layer ends a part. A very large layer also begins a
part: the part is the same over any lower layers, and images without a common beginning can share it (see
content.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from images.bounds.digests import digest_of

# Each part is a disk of the zone, and one string of mount options must hold all their names.
MAX_PARTS = 8
# A layer of this many least part sizes is not joined with small layers below, unless half of the parts are
# used up: building the layer again costs more than a disk.
VERY_LARGE = 8


@dataclass(frozen=True)
class Part:
    """One filesystem. end: number of layers up to and including its topmost.

    chain_id names its layers and the parts below; below: the chain_id of the next lower part, "": none.
    """

    chain_id: str
    below: str
    end: int


def chain(diff_ids: Sequence[str]) -> str:
    """The name of a chain of layers, lowest first (OCI image-spec, config.md, "Layer ChainID")."""
    name = ""
    for diff_id in diff_ids:
        name = digest_of(f"{name} {diff_id}".encode()) if name else diff_id
    return name or digest_of(b"")


def parts(diff_ids: Sequence[str], sizes: Sequence[int], least: int) -> list[Part]:
    """The stack of an image, lowest first.

    sizes: of the compressed layers, in bytes. A part ends at ``least`` bytes, and before a very large layer.
    The topmost part takes the remaining layers, and all layers beyond MAX_PARTS.
    """
    ends: list[int] = []
    size = 0
    for number, layer in enumerate(sizes):
        if number > max(ends, default=0) and layer >= VERY_LARGE * least and len(ends) < MAX_PARTS // 2:
            ends.append(number)
            size = 0
        size += layer
        if size >= least and len(ends) < MAX_PARTS - 1 and number + 1 < len(sizes):
            ends.append(number + 1)
            size = 0
    found: list[Part] = []
    start, below = 0, ""
    for end in (*ends, len(sizes)):
        name = chain(diff_ids[start:end])
        # Differs from the chain of the same layers in one part, although that part has the same digests.
        found.append(Part(digest_of(f"{below} below {name}".encode()) if below else name, below, end))
        start, below = end, found[-1].chain_id
    return found
