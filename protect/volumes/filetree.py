"""A directory or file of the host as a tree for a copy: bounded, without following links.

Kubernetes' AtomicWriter (pkg/volume/util/atomic_writer.go) makes a volume of three kinds of entries::

    ..2026_01_02_03_04_05.123456/   a version's files, constant once the version is in force
    ..data                          a symbolic link to the version in force, replaced by rename(2)
    <name>                          a symbolic link to ..data/<name>

A read of a version is consistent if ``..data`` leads to it before and after.  All functions block.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence

from protect.model.copied_files import (
    FileChunk,
    FileEntry,
    FileId,
    FileKind,
    FilesChanged,
    FileTree,
    FileVolume,
)
from protect.volumes.returned import open_returned

MOST_ENTRIES = 1024
MOST_BYTES = 4 << 20
"""Maximum bytes of one volume, counted in whole pages of the zone's memory."""
_NAME_BYTES = 128 << 10
_DEPTH = 16
_TRIES = 5
_PAGE_BYTES = 4096
_DATA = "..data"
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class NotCopied(Exception):
    """A volume of another kind, or too large; the text is the reason."""


def scan(place: int, volume: FileVolume) -> FileTree:
    """The tree at a descriptor (O_PATH, of a directory or a plain file).  NotCopied; OSError."""
    for _ in range(_TRIES):
        root = os.open(f"/proc/self/fd/{place}", _OPEN)
        try:
            return _scan(root, volume)
        except (FilesChanged, FileNotFoundError):
            os.close(root)
        except BaseException:
            os.close(root)
            raise
    raise NotCopied("it changes all the time")


def _scan(root: int, volume: FileVolume) -> FileTree:
    status = os.fstat(root)
    walk = _Walk(status.st_dev)
    walk.add("", status)
    keep: list[str] = []
    if volume.is_returned:
        _check_returned(volume, (status.st_dev, status.st_ino))
    elif stat.S_ISDIR(status.st_mode):
        keep = _versions(walk, root) if volume.keep_current else _plain(walk, root)
    return FileTree(
        version=walk.version(),
        entries=walk.entries,
        keep=keep,
        size_bytes=walk.size_bytes,
        root=root,
        file=(status.st_dev, status.st_ino),
    )


def _check_returned(volume: FileVolume, file: FileId) -> None:
    """NotCopied: the zone's bytes could not be written back."""
    try:
        os.close(open_returned(volume, os.O_WRONLY, file))
    except OSError as error:
        raise NotCopied(f"it could not be written back: {error.strerror}") from None


def _plain(walk: _Walk, root: int) -> list[str]:
    """Collect any tree; returns the names in its root."""
    walk.tree(root, "", links=True)
    return [entry.path for entry in walk.entries if entry.path and "/" not in entry.path]


def _versions(walk: _Walk, root: int) -> list[str]:
    """Collect an AtomicWriter's tree, with its links last; returns the names in its root."""
    top = _in_force(root)
    links = []
    for entry in _listed(root, walk.left):
        if entry.name.startswith(".."):
            continue  # the link itself, an old version, or an unfinished version
        if not entry.is_symlink() or os.readlink(entry.name, dir_fd=root) != f"{_DATA}/{entry.name}":
            raise NotCopied(f"{entry.name!r:.100} is no link of an AtomicWriter")
        links.append(entry.name)
    below = os.open(top, _OPEN | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    try:
        walk.add(top, os.fstat(below))
        walk.tree(below, top, links=False)
    finally:
        os.close(below)
    if _in_force(root) != top:
        raise FilesChanged
    walk.link(_DATA, top)
    for name in sorted(links):
        walk.link(name, f"{_DATA}/{name}")
    return [top, _DATA, *links]


def _in_force(root: int) -> str:
    try:
        top = os.readlink(_DATA, dir_fd=root)
    except OSError:
        raise NotCopied("it is not an AtomicWriter's: there is no ..data") from None
    if not top.startswith("..") or top in ("..", _DATA) or "/" in top:
        raise NotCopied("it is not an AtomicWriter's: ..data leads elsewhere")
    return top


def _listed(directory: int, most: int) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        for count, entry in enumerate(entries):
            if count >= most:
                raise NotCopied(f"it has more than {MOST_ENTRIES} entries")
            yield entry


class _Walk:
    """Collects entries, within bounds."""

    def __init__(self, device: int) -> None:
        self.entries: list[FileEntry] = []
        self.size_bytes = 0
        self._device = device
        self._names = 0

    @property
    def left(self) -> int:
        return MOST_ENTRIES - len(self.entries)

    def tree(self, directory: int, path: str, *, links: bool, depth: int = 0) -> None:
        """Collect a directory; ``links``: include symbolic links that stay within the root."""
        if depth >= _DEPTH:
            raise NotCopied(f"its directories are deeper than {_DEPTH}")
        for entry in sorted(_listed(directory, self.left), key=lambda entry: entry.name):
            status = entry.stat(follow_symlinks=False)
            place = f"{path}/{entry.name}" if path else entry.name
            if links and stat.S_ISLNK(status.st_mode):
                self._link_within(place, os.readlink(entry.name, dir_fd=directory))
                continue
            self.add(place, status)
            if stat.S_ISDIR(status.st_mode):
                below = os.open(entry.name, _OPEN | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
                try:
                    self.tree(below, place, links=links, depth=depth + 1)
                finally:
                    os.close(below)

    def add(self, path: str, status: os.stat_result) -> None:
        """Collect a directory or a plain file; all other kinds are skipped."""
        if stat.S_ISREG(status.st_mode):
            kind, size = FileKind.REGULAR, status.st_size
        elif stat.S_ISDIR(status.st_mode):
            kind, size = FileKind.DIRECTORY, 0
        else:
            raise NotCopied(f"{path!r:.100} is neither a file nor a directory")
        if status.st_dev != self._device:
            raise NotCopied(f"something is mounted at {path!r:.100}")
        self._append(
            FileEntry(
                path=path,
                kind=kind,
                mode=stat.S_IMODE(status.st_mode),
                uid=status.st_uid,
                gid=status.st_gid,
                size=size,
                file=(status.st_dev, status.st_ino),
                mtime_ns=status.st_mtime_ns if kind is FileKind.REGULAR else 0,
            )
        )

    def _link_within(self, path: str, target: str) -> None:
        led = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if target.startswith("/") or led == ".." or led.startswith("../"):
            raise NotCopied(f"{path!r:.100} leads out of it")
        self.link(path, target)

    def link(self, path: str, target: str) -> None:
        self._append(FileEntry(path, FileKind.SYMLINK, target=os.fsencode(target)))

    def _append(self, entry: FileEntry) -> None:
        try:
            self._names += len(entry.path.encode()) + len(entry.target)
        except UnicodeEncodeError:
            raise NotCopied(f"the name {entry.path!r:.100} is not UTF-8") from None
        self.size_bytes += _PAGE_BYTES + -(-entry.size // _PAGE_BYTES) * _PAGE_BYTES
        if self.left <= 0:
            raise NotCopied(f"it has more than {MOST_ENTRIES} entries")
        if self.size_bytes > MOST_BYTES or self._names > _NAME_BYTES:
            raise NotCopied(f"it takes more than {MOST_BYTES >> 20} MiB")
        self.entries.append(entry)

    def version(self) -> str:
        """A digest that differs after each change of a name, an attribute, or content."""
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(repr(entry).encode())
        return digest.hexdigest()[:32]


def read_chunks(tree: FileTree, chunks: Sequence[FileChunk]) -> list[bytes]:
    """The contents of chunks.  FilesChanged: a file differs from the scan; OSError."""
    return [_read(tree, chunk) if chunk.entry.kind is FileKind.REGULAR else b"" for chunk in chunks]


def _read(tree: FileTree, chunk: FileChunk) -> bytes:
    entry = chunk.entry
    try:
        file = _open(tree.root, entry)
    except (FileNotFoundError, NotADirectoryError):
        raise FilesChanged from None
    try:
        content = os.pread(file, chunk.count, chunk.offset) if chunk.count else b""
        status = os.fstat(file)
    finally:
        os.close(file)
    if (status.st_size, status.st_mtime_ns, len(content)) != (entry.size, entry.mtime_ns, chunk.count):
        raise FilesChanged
    return content


def _open(root: int, entry: FileEntry) -> int:
    """Open a file of the scan.  Look it up first without opening it: it may now be a pipe."""
    *parents, name = entry.path.split("/")
    at = os.dup(root)
    try:
        for parent in parents:
            below = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        if name:
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = found
        status = os.fstat(at)
        if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != entry.file:
            raise FilesChanged
        return os.open(f"/proc/self/fd/{at}", _OPEN)
    finally:
        os.close(at)
