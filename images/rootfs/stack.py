"""Decides which filesystems an image becomes: a stack of parts, each of one or several layers.

The rule looks at the layers from the lowest up and never back, so that images which begin with the same
layers have the same filesystems for them. A large layer ends a part, and a very large one begins one, too:
whatever lies below it, it is cut out in the same way, and so images can share it that have no beginning in
common (see content.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from images.bounds.digests import digest_of

# Each is a disk of the zone, and one string of mount options must hold all their names.
MAX_PARTS = 8
# As many times the least size of a part, a layer is not put together with small ones below it, as long as not
# more than half of the parts are there: building it again costs more than a disk.
VERY_LARGE = 8


@dataclass(frozen=True)
class Part:
    """One filesystem. end: how many layers there are up to its topmost one.

    chain_id names its layers and the parts below it; below: the chain_id of the next one down, "": none.
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

    sizes: of the compressed layers, in bytes; a part ends as soon as it has ``least`` of them, and before a
    layer that is very large. The topmost takes what is left, and all that is beyond MAX_PARTS.
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
        # Unlike a chain of the same layers in one part, which has the same digests in it.
        found.append(Part(digest_of(f"{below} below {name}".encode()) if below else name, below, end))
        start, below = end, found[-1].chain_id
    return found
