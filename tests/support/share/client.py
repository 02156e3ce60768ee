"""9P2000.L by hand: each message as the caller says, right or wrong."""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass
from itertools import count

NOBODY = 0xFFFFFFFF
NOTAG = 0xFFFF


class Type:
    """Numbers of requests; a reply's number is larger by 1."""

    STATFS, LOPEN, LCREATE, SYMLINK, MKNOD = 8, 12, 14, 16, 18
    READLINK, GETATTR, SETATTR, XATTRWALK, XATTRCREATE = 22, 24, 26, 30, 32
    READDIR, FSYNC, LOCK, GETLOCK, LINK, MKDIR, RENAMEAT, UNLINKAT = 40, 50, 52, 54, 70, 72, 74, 76
    VERSION, ATTACH, FLUSH, WALK, READ, WRITE, CLUNK, REMOVE = 100, 104, 108, 110, 116, 118, 120, 122


class SessionOver(Exception):
    """The server has hung up."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """Of Rgetattr, in part."""

    mode: int
    uid: int
    gid: int
    nlink: int
    size: int
    number: int


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else os.fsencode(value)
    return struct.pack("<H", len(raw)) + raw


class NinePClient:
    """A session on a connected socket."""

    def __init__(self, connection: socket.socket, msize: int = 131072) -> None:
        self.socket = connection
        self.msize = msize
        self._fids = count(1)

    def close(self) -> None:
        self.socket.close()

    # -- messages

    def send(self, kind: int, body: bytes, tag: int = 1) -> None:
        self.raw(struct.pack("<IBH", 7 + len(body), kind, tag) + body)

    def raw(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise SessionOver from error

    def receive(self) -> tuple[int, int, bytes]:
        """Type, tag and body of the next reply."""
        (size,) = struct.unpack("<I", self._exactly(4))
        data = self._exactly(size - 4)
        kind, tag = struct.unpack("<BH", data[:3])
        return kind, tag, data[3:]

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self.socket.recv(size)
            except ConnectionResetError:
                part = b""
            if not part:
                raise SessionOver
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def call(self, kind: int, body: bytes) -> bytes:
        """The answer's body; OSError for an error."""
        self.send(kind, body)
        answer, tag, rest = self.receive()
        if answer == 7:
            (number,) = struct.unpack("<I", rest)
            raise OSError(number, f"{errno.errorcode.get(number, number)} to request {kind}")
        assert (answer, tag) == (kind + 1, 1)
        return rest

    # -- requests

    def begin(self, uid: int = 0) -> int:
        """Version and attach; the root's fid."""
        rest = self.call(Type.VERSION, struct.pack("<I", self.msize) + text("9P2000.L"))
        (self.msize,) = struct.unpack("<I", rest[:4])
        assert rest[4:] == text("9P2000.L")
        return self.attach(uid)

    def attach(self, uid: int = 0) -> int:
        fid = next(self._fids)
        body = struct.pack("<II", fid, NOBODY) + text("") + text("/") + struct.pack("<I", uid)
        self.call(Type.ATTACH, body)
        return fid

    def walk(self, fid: int, *names: str | bytes, to: int = 0) -> int:
        """The new fid; FileNotFoundError when the way ends before the last name."""
        new = to or next(self._fids)
        body = struct.pack("<IIH", fid, new, len(names)) + b"".join(text(name) for name in names)
        rest = self.call(Type.WALK, body)
        (found,) = struct.unpack("<H", rest[:2])
        if found < len(names):
            raise FileNotFoundError(errno.ENOENT, f"{names!r} end after {found}")
        return new

    def open(self, fid: int, flags: int = os.O_RDONLY) -> None:
        self.call(Type.LOPEN, struct.pack("<II", fid, flags))

    def create(
        self, fid: int, name: str | bytes, flags: int = os.O_RDWR, mode: int = 0o644, gid: int = 0
    ) -> None:
        self.call(Type.LCREATE, struct.pack("<I", fid) + text(name) + struct.pack("<III", flags, mode, gid))

    def read(self, fid: int, offset: int = 0, size: int = 65536) -> bytes:
        rest = self.call(Type.READ, struct.pack("<IQI", fid, offset, size))
        assert struct.unpack("<I", rest[:4])[0] == len(rest) - 4
        return rest[4:]

    def write(self, fid: int, data: bytes, offset: int = 0) -> int:
        rest = self.call(Type.WRITE, struct.pack("<IQI", fid, offset, len(data)) + data)
        return int(struct.unpack("<I", rest)[0])

    def getattr(self, fid: int) -> Attributes:
        rest = self.call(Type.GETATTR, struct.pack("<IQ", fid, 0x7FF))
        _, _, _, number, mode, uid, gid, nlink, _, size = struct.unpack_from("<QBIQIIIQQQ", rest)
        return Attributes(mode, uid, gid, nlink, size, number)

    def setattr(
        self, fid: int, valid: int, *, mode: int = 0, uid: int = 0, gid: int = 0, size: int = 0
    ) -> None:
        self.call(Type.SETATTR, struct.pack("<IIIIIQQQQQ", fid, valid, mode, uid, gid, size, 0, 0, 0, 0))

    def mkdir(self, fid: int, name: str | bytes, mode: int = 0o755, gid: int = 0) -> None:
        self.call(Type.MKDIR, struct.pack("<I", fid) + text(name) + struct.pack("<II", mode, gid))

    def symlink(self, fid: int, name: str, target: str, gid: int = 0) -> None:
        self.call(Type.SYMLINK, struct.pack("<I", fid) + text(name) + text(target) + struct.pack("<I", gid))

    def readlink(self, fid: int) -> str:
        return self.call(Type.READLINK, struct.pack("<I", fid))[2:].decode()

    def mknod(self, fid: int, name: str, mode: int, major: int = 0, minor: int = 0) -> None:
        body = struct.pack("<I", fid) + text(name) + struct.pack("<IIII", mode, major, minor, 0)
        self.call(Type.MKNOD, body)

    def link(self, directory: int, fid: int, name: str) -> None:
        self.call(Type.LINK, struct.pack("<II", directory, fid) + text(name))

    def rename(self, source: int, name: str, target: int, new: str) -> None:
        self.call(
            Type.RENAMEAT, struct.pack("<I", source) + text(name) + struct.pack("<I", target) + text(new)
        )

    def unlink(self, fid: int, name: str, *, directory: bool = False) -> None:
        self.call(Type.UNLINKAT, struct.pack("<I", fid) + text(name) + struct.pack("<I", 0x200 * directory))

    def readdir(self, fid: int, limit: int = 8192) -> list[str]:
        """All of an open directory."""
        names: list[str] = []
        offset = 0
        while True:
            rest = self.call(Type.READDIR, struct.pack("<IQI", fid, offset, limit))
            (size,) = struct.unpack("<I", rest[:4])
            assert size == len(rest) - 4 <= limit
            if not size:
                return names
            at = 4
            while at < len(rest):
                offset, _, length = struct.unpack_from("<QBH", rest, at + 13)
                at += 24
                names.append(os.fsdecode(rest[at : at + length]))
                at += length

    def clunk(self, fid: int) -> None:
        self.call(Type.CLUNK, struct.pack("<I", fid))

    def xattr(self, fid: int, name: str = "") -> bytes:
        """The value, or the names."""
        new = next(self._fids)
        rest = self.call(Type.XATTRWALK, struct.pack("<II", fid, new) + text(name))
        (size,) = struct.unpack("<Q", rest)
        value = self.read(new, 0, size)
        self.clunk(new)
        return value

    def set_xattr(self, fid: int, name: str, value: bytes, flags: int = 0) -> None:
        new = self.walk(fid)
        self.call(
            Type.XATTRCREATE, struct.pack("<I", new) + text(name) + struct.pack("<QI", len(value), flags)
        )
        if value:
            assert self.write(new, value) == len(value)
        self.clunk(new)
