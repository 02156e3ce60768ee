"""Writes a planned filesystem's stream into tar2sqfs: the worker's side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from images.bounds.fields import FieldWriter
from images.rootfs.convert import Accounts, write_stream
from images.rootfs.stream import ACCOUNT_FILES, StreamPipe, load_contents
from images.worker import wire

# Bytes to copy before the next report.
_TOLD = 4 << 20


def write_files(
    target: int,
    out: StreamPipe,
    plan: BinaryIO,
    blobs: Mapping[int, BinaryIO],
    subject: str,
    layers: Sequence[int],
    known: Mapping[tuple[int, int], bytes],
) -> FieldWriter:
    """Write the rest of a filesystem's stream: the files of some layers, and all inodes without data.

    Answers with the account files, and whether the tool read the whole stream. known: see Accounts.
    """
    contents, found = load_contents(plan)
    files = {layer: contents.files[layer] for layer in layers}
    accounts = Accounts(found, known)
    moved = _Moved(target)
    feed = partial(write_stream, blobs, contents._replace(files=files), accounts, subject, moved.add)
    whole = out.put(feed) and out.flush()
    moved.tell()
    return account_fields(accounts.contents(blobs, subject)).number(whole)


def account_fields(contents: Mapping[str, bytes | None]) -> FieldWriter:
    """Of each account file: changed or not, present or not, contents."""
    fields = FieldWriter()
    for path in ACCOUNT_FILES:
        data = contents.get(path)
        fields.number(path in contents).number(data is not None).data(data or b"")
    return fields


class _Moved:
    """Reports the number of copied bytes at intervals."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._bytes = 0

    def add(self, size: int) -> None:
        self._bytes += size
        if self._bytes >= _TOLD:
            self.tell()

    def tell(self) -> None:
        # The daemon has gone, and no longer counts.
        with suppress(BrokenPipeError):
            wire.moved(self._target, self._bytes)
        self._bytes = 0
