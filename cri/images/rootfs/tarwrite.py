"""The merged tree as a plain tar stream for tar2sqfs: our own headers, and file data copied between them."""

from __future__ import annotations

from cri.images.layer import tarstream
from cri.images.layer.inode import Inode

BLOCK = 512
END = bytes(2 * BLOCK)
_OCTAL_MAX = 0o77777777777


def member(path: bytes, node: Inode) -> tuple[bytes, int]:
    """An inode's headers, and how many zero bytes pad its data; the root's path is empty."""
    records: list[tuple[bytes, bytes]] = [(b"SCHILY.xattr." + key, value) for key, value in node.xattrs]
    stored = node.content.stored if node.content is not None else 0
    before = b""
    if node.content is not None and node.content.extents is not None:
        # tar2sqfs takes no empty map: what is all hole ends with an empty part, as GNU tar writes it.
        before = _sparse_map(node.content.extents or ((node.size, 0),))
        records += [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0")]
        records += [(b"GNU.sparse.name", path), (b"GNU.sparse.realsize", b"%d" % node.size)]
    headers = _headers(path or b"./", node.kind, node, records, stored + len(before), node.target)
    return headers + before, -stored % BLOCK


def hard_link(path: bytes, target: bytes) -> bytes:
    """The header of a further name for an inode that stands under target."""
    return _headers(path, tarstream.LINK, None, [], 0, target)


def _headers(
    path: bytes, kind: bytes, node: Inode | None, records: list[tuple[bytes, bytes]], size: int, link: bytes
) -> bytes:
    owner = (node.uid, node.gid) if node is not None else (0, 0)
    if len(path) > 100:
        records.append((b"path", path))
    if len(link) > 100:
        records.append((b"linkpath", link))
    for key, value, most in (
        (b"uid", owner[0], 0o7777777),
        (b"gid", owner[1], 0o7777777),
        (b"size", size, _OCTAL_MAX),
    ):
        if value > most:
            records.append((key, b"%d" % value))
    header = _block(path, kind, node, size, link)
    if not records:
        return header
    text = b"".join(_record(key, value) for key, value in records)
    return _block(b"pax", b"x", None, len(text), b"") + text + bytes(-len(text) % BLOCK) + header


def _block(path: bytes, kind: bytes, node: Inode | None, size: int, link: bytes) -> bytes:
    block = bytearray(BLOCK)
    block[0 : min(len(path), 100)] = path[:100]
    block[157 : 157 + min(len(link), 100)] = link[:100]
    mode, uid, gid, mtime = (
        (node.mode, node.uid, node.gid, node.mtime) if node is not None else (0o644, 0, 0, 0)
    )
    device = node.device if node is not None else (0, 0)
    block[100:124] = b"%07o\0%07o\0%07o\0" % (mode, min(uid, 0o7777777), min(gid, 0o7777777))
    block[124:148] = b"%011o\0%011o\0" % (min(size, _OCTAL_MAX), mtime)
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[329:345] = b"%07o\0%07o\0" % device
    block[148:156] = b"%06o\0 " % (sum(block) + 8 * 0x20)
    return bytes(block)


def _record(key: bytes, value: bytes) -> bytes:
    """A PAX record, whose length counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _sparse_map(extents: tuple[tuple[int, int], ...]) -> bytes:
    text = b"%d\n" % len(extents) + b"".join(b"%d\n%d\n" % extent for extent in extents)
    return text + bytes(-len(text) % BLOCK)
