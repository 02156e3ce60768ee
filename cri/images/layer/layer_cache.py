"""Lists of layers' entries on disk: they spare reading a layer again when another image has it too.

As tree caches: nothing depends on them, and what is missing, damaged or of another version is made again.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from cri.images.layer.layers import EntryList, LayerIndex
from cri.images.layer.packed import MARSHAL
from cri.images.layer.tarstream import TarEntry

_FORM = f"1 {sys.version_info[0]}.{sys.version_info[1]} {' '.join(TarEntry._fields)}"
# Entries that are packed together, so that no second copy of all is in memory.
_TOGETHER = 4096
_SIZE = 4


def write(path: Path, digest: str, diff_id: str, index: LayerIndex) -> None:
    """Write a layer's list. digest: of the compressed layer, whose plain bytes have been verified."""
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    with path.open("xb") as file, compressor.stream_writer(file) as out:
        entries = iter(index.entries)
        _put(out, (_FORM, digest, diff_id, len(index.entries), *index[1:4]))
        while some := list(islice(entries, _TOGETHER)):
            _put(out, [tuple(entry) for entry in some])


def load(path: Path, digest: str, diff_id: str) -> LayerIndex | None:
    """Read what write() wrote for this layer; None: it is missing, unusable, or another layer's."""
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as source:
            blocks = _blocks(source)
            *key, count, plain_bytes, names, memory = next(blocks)
            if key != [_FORM, digest, diff_id]:
                return None
            entries = EntryList()
            for block in blocks:
                for record in block:
                    entries.add(TarEntry(*record))
        return LayerIndex(entries, plain_bytes, names, memory, False) if len(entries) == count else None
    except (OSError, zstandard.ZstdError, ValueError, EOFError, TypeError, StopIteration):
        return None


def _put(out: Any, value: Any) -> None:
    data = marshal.dumps(value, MARSHAL)
    out.write(len(data).to_bytes(_SIZE, "little") + data)


def _blocks(source: BinaryIO | Any) -> Iterator[Any]:
    while size := source.read(_SIZE):
        yield marshal.loads(source.read(int.from_bytes(size, "little")))
