"""Writes the output of ``protect image export``: a tar archive or a directory, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import sys
import tarfile
from collections.abc import AsyncIterable, Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from protectctl.command_errors import CommandFailed
from protectctl.show import note
from xenpod_proto.images.v1 import images_pb2 as pb

STDOUT = "-"
_NAMES = re.compile(r"oci-layout|index\.json|blobs/[a-z0-9]{1,20}/[0-9a-f]{1,128}")
_NO_LAYOUT = "the daemon sends no proper image layout"


class LayoutWriter(Protocol):
    """Writes the files of an image layout in order."""

    def begin(self, path: str, size: int) -> None:
        """Begin the next file; the last file is complete."""

    def data(self, data: bytes) -> None:
        """Write the next bytes of the file."""

    def end(self) -> None:
        """Finish: all files are complete."""


async def write_export(events: AsyncIterable[pb.ExportEvent], path: str, directory: bool) -> None:
    """Write an export to a path, or as an archive to standard output; CommandFailed: writing failed.

    Nothing appears at the path until the export is complete; an existing archive is replaced.
    """
    try:
        with _directory(Path(path)) if directory else _archive(path) as writer:
            left = 0
            async for event in events:
                if event.WhichOneof("event") == "note":
                    note(event.note)
                elif event.WhichOneof("event") == "file":
                    if left or not _NAMES.fullmatch(event.file.path):
                        raise CommandFailed(_NO_LAYOUT)
                    left = event.file.size_bytes
                    writer.begin(event.file.path, left)
                else:
                    left -= len(event.data)
                    writer.data(event.data)
            if left:
                raise CommandFailed(_NO_LAYOUT)
            writer.end()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandFailed(f"write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _archive(path: str) -> Iterator[LayoutWriter]:
    if path == STDOUT:
        if sys.stdout.isatty():
            raise CommandFailed("an archive is not for a terminal: name a file, or redirect the output")
        yield _Archive(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    final = Path(path)
    if final.exists() and not final.is_file():
        raise CommandFailed(f"write {path}: it exists, and is not a file")
    work = _beside(final)
    with _undone(lambda: work.unlink(missing_ok=True)):
        with work.open("xb") as file:
            yield _Archive(file)
            file.flush()
            os.fsync(file.fileno())
        work.replace(final)


@contextlib.contextmanager
def _directory(final: Path) -> Iterator[LayoutWriter]:
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        raise CommandFailed(f"write {final}: it exists, and is not an empty directory")
    work = _beside(final)
    with _undone(lambda: shutil.rmtree(work, ignore_errors=True)):
        work.mkdir()
        with contextlib.closing(_Directory(work)) as writer:
            yield writer
        # An empty directory is replaced, but not a directory with new content.
        work.rename(final)


@contextlib.contextmanager
def _undone(undo: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        undo()
        raise


def _beside(final: Path) -> Path:
    return final.absolute().with_name(f".{final.absolute().name}.{secrets.token_hex(4)}")


class _Archive:
    """Writes a tar archive; the same images give the same bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._written = 0

    def begin(self, path: str, size: int) -> None:
        """See LayoutWriter."""
        self._pad()
        member = tarfile.TarInfo(path)
        member.size = size
        self._file.write(member.tobuf(tarfile.PAX_FORMAT))

    def data(self, data: bytes) -> None:
        """See LayoutWriter."""
        self._file.write(data)
        self._written += len(data)

    def end(self) -> None:
        """See LayoutWriter."""
        self._pad()
        self._file.write(bytes(2 * tarfile.BLOCKSIZE))

    def _pad(self) -> None:
        self._file.write(bytes(-self._written % tarfile.BLOCKSIZE))
        self._written = 0


class _Directory:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._file: BinaryIO | None = None

    def begin(self, path: str, size: int) -> None:
        """See LayoutWriter."""
        self.close()
        place = self._root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        self._file = place.open("xb")

    def data(self, data: bytes) -> None:
        """See LayoutWriter."""
        if self._file is not None:
            self._file.write(data)

    def end(self) -> None:
        """See LayoutWriter."""
        self.close()

    def close(self) -> None:
        """Close the last file."""
        if self._file is not None:
            self._file.close()
            self._file = None
