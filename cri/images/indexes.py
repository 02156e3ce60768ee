"""Indexes of layers on the disk, so that one that is here need not be read through again.

They spare work, and nothing depends on them: one that is missing, damaged, or of another version of this
program or of Python is made again from its layer.
"""

from __future__ import annotations

import marshal
import sys
from pathlib import Path

import zstandard

from cri.images.layers import LayerIndex
from cri.images.tarstream import Entry

_FORM = f"1 {sys.version_info[0]}.{sys.version_info[1]} {marshal.version} {' '.join(Entry._fields)}"


def pack(index: LayerIndex, diff_id: str) -> bytes:
    """The file of an index; diff_id: of the layer."""
    entries = [tuple(entry) for entry in index.entries]
    plain = marshal.dumps((_FORM, diff_id, index.plain_bytes, index.weight, entries))
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(plain)


def load(path: Path, diff_id: str) -> LayerIndex | None:
    """What pack() made; None: not there, or of no use.

    The file is this program's own, in a folder of root's, and its checksum tells what a disk did to it.
    """
    try:
        plain = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        form, of, plain_bytes, weight, entries = marshal.loads(plain)
    except (OSError, zstandard.ZstdError, ValueError, EOFError, TypeError):
        return None
    if (form, of) != (_FORM, diff_id):
        return None
    return LayerIndex([Entry._make(entry) for entry in entries], plain_bytes, weight)
