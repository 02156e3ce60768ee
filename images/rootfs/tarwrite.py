"""Writes the merged tree as a plain tar stream for tar2sqfs: generated headers, copied file data."""

from __future__ import annotations

import zlib

from images.layer import tarstream
from images.layer.inode import Inode

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
_OCTAL_MAX = 0o77777777777


def member(path: bytes, node: Inode) -> tuple[bytes, int]:
    """An inode's headers, and the zero bytes of padding after the data; the root's path is empty."""
    records: list[tuple[bytes, bytes]] = [(b"SCHILY.xattr." + key, value) for key, value in node.xattrs]
    content = node.content
    stored = content.stored if content is not None else 0
    before = b""
    if content is not None and content.extents is not None:
        # tar2sqfs rejects an empty map: a file of one hole ends with an empty part, as in GNU tar.
        before = _sparse_map(content.extents or ((node.size, 0),))
        records += [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0")]
        records += [(b"GNU.sparse.name", path), (b"GNU.sparse.realsize", b"%d" % node.size)]
    headers = _headers(path or b"./", node.kind, node, records, stored + len(before), node.target)
    return headers + before, -stored % BLOCK_BYTES


def hard_link(path: bytes, target: bytes) -> bytes:
    """The header of a hard link to the inode at target."""
    return _headers(path, tarstream.LINK, None, [], 0, target)


def _headers(
    path: bytes, kind: bytes, node: Inode | None, records: list[tuple[bytes, bytes]], size: int, link: bytes
) -> bytes:
    owner = (node.uid, node.gid) if node is not None else (0, 0)
    if len(path) > 100:
        records.append((b"path", path))
    if len(link) > 100:
        records.append((b"linkpath", link))
    if max(owner) > 0o7777777 or size > _OCTAL_MAX:
        named = ((b"uid", owner[0], 0o7777777), (b"gid", owner[1], 0o7777777), (b"size", size, _OCTAL_MAX))
        records += [(key, b"%d" % value) for key, value, most in named if value > most]
    header = _block(path, kind, node, size, link)
    if not records:
        return header
    text = b"".join(_record(key, value) for key, value in records)
    return _block(b"pax", b"x", None, len(text), b"") + text + bytes(-len(text) % BLOCK_BYTES) + header


def _block(path: bytes, kind: bytes, node: Inode | None, size: int, link: bytes) -> bytes:
    mode, uid, gid, mtime = (
        (node.mode, node.uid, node.gid, node.mtime) if node is not None else (0o644, 0, 0, 0)
    )
    head = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (
        path[:100].ljust(100, b"\0"),
        mode,
        min(uid, 0o7777777),
        min(gid, 0o7777777),
        min(size, _OCTAL_MAX),
        mtime,
    )
    device = node.device if node is not None else (0, 0)
    tail = _NO_LINK[kind] if not link and device == (0, 0) else _tail(kind, link, device)
    # The low half of Adler-32 is 1 plus the sum of all bytes, modulo 65521 (RFC 1950); the sum of a header
    # here is smaller. adler32() takes a tenth of the time of sum().
    total = (zlib.adler32(tail, zlib.adler32(head)) & 0xFFFF) - 1 + 8 * 0x20
    return b"%b%06o\0 %b" % (head, total, tail)


def _tail(kind: bytes, link: bytes, device: tuple[int, int]) -> bytes:
    """The header after the checksum."""
    fields = (kind, link[:100].ljust(100, b"\0"), b"ustar\x0000", bytes(64), *device)
    return (b"%b%b%b%b%07o\0%07o\0" % fields).ljust(BLOCK_BYTES - 156, b"\0")


_NO_LINK = {kind: _tail(kind, b"", (0, 0)) for kind in (b"x", *(b"%d" % number for number in range(7)))}


def _record(key: bytes, value: bytes) -> bytes:
    """A PAX record; the length counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _sparse_map(extents: tuple[tuple[int, int], ...]) -> bytes:
    text = b"%d\n" % len(extents) + b"".join(b"%d\n%d\n" % extent for extent in extents)
    return text + bytes(-len(text) % BLOCK_BYTES)
