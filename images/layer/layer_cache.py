"""Lists of layers' entries in files: they spare reading a layer again when another image has it too.

As tree caches: nothing depends on them, and what is missing, damaged or of another version is made again.
Workers write and read them; the daemon only keeps them.
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
"""Errors of a file that is damaged, or of another version."""


def write(out: BinaryIO, digest: str, diff_id: str, index: LayerIndex) -> None:
    """Write a layer's list. digest: of the compressed layer, whose plain bytes have been verified."""
    packed.save(out, (_FORM, digest, diff_id, *index[1:]))
    index.entries.save(out)


def load(source: BinaryIO, digest: str, diff_id: str) -> LayerIndex | None:
    """Read what write() wrote for this layer; None: it is unusable, or another layer's."""
    try:
        *key, plain_bytes, names, memory = packed.load(source)
        if key != [_FORM, digest, diff_id]:
            return None
        records = PackedRecords.load(source)
        # All of it before the first entry is applied.
        records.check()
        return LayerIndex(EntryList(records), plain_bytes, names, memory)
    except UNUSABLE:
        return None
