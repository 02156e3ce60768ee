"""Stores lists of layers' entries in files: a layer shared by several images is then read only once.

Like tree caches, lists are optional: a missing, damaged or outdated list is made again. Workers write and
read the lists; the daemon only keeps them.
"""

from __future__ import annotations

import sys
from typing import BinaryIO

import zstandard

from images.layer import packed
from images.layer.layers import EntryList, LayerIndex
from images.layer.packed import PackedRecords
from images.layer.tarstream import TarEntry

_FORM = f"2 {sys.version_info[0]}.{sys.version_info[1]} {' '.join(TarEntry._fields)}"
UNUSABLE = (OSError, zstandard.ZstdError, ValueError, EOFError, TypeError)
"""Errors of a damaged or outdated file."""


def write_index(out: BinaryIO, digest: str, diff_id: str, index: LayerIndex) -> None:
    """Write a layer's list. digest: of the compressed layer; its plain bytes have been verified."""
    packed.save(out, (_FORM, digest, diff_id, *index[1:]))
    index.entries.save(out)


def load_index(source: BinaryIO, digest: str, diff_id: str) -> LayerIndex | None:
    """Read the output of write_index() for this layer; None: unusable, or another layer's list."""
    try:
        *key, plain_bytes, names, memory = packed.load_packed(source)
        if key != [_FORM, digest, diff_id]:
            return None
        records = PackedRecords.load(source)
        # Check the whole list before the first entry is applied.
        records.check()
        return LayerIndex(EntryList(records), plain_bytes, names, memory)
    except UNUSABLE:
        return None
