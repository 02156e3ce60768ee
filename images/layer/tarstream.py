"""Reads a layer's tar stream into entries, within bounds, without writing anything.

Not ``tarfile``, because the module reads a PAX header of any length into memory, decodes names, and takes
four times as long per entry. Formats: POSIX.1-2017 pax and ustar, GNU (long names, base-256, sparse 0.0 to
1.0), v7. If a format leaves a choice, this code follows Go's archive/tar, the unpacker of every other
runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from images.image_errors import Unpackable
from images.layer import losses
from images.layer.stream import PlainStream
from images.layer.tarextras import ACL_TEXTS, Extras, HeaderBudget, Weigh, read_pax
from images.layer.tarsparse import Extents, old_gnu_map, pax_map, stored_map

BLOCK_BYTES = 512
# Linux's limit: no file can be reached by a longer path.
PATH_MAX = 4096
_ZERO = bytes(BLOCK_BYTES)
FILE, LINK, SYMLINK, CHAR, BLOCKDEV, DIR, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
_KINDS = {b"0": FILE, b"\0": FILE, b"7": FILE, b"S": FILE} | {
    k: k for k in (LINK, SYMLINK, CHAR, BLOCKDEV, DIR, FIFO)
}


class TarEntry(NamedTuple):
    """One member of a layer. offset, stored: place and length of its data in the plain stream, in bytes.

    size is the file's length; with extents (offset in file, length) the stored bytes are those ranges in
    turn. lost: bits of losses.py, for attributes without a field here.
    """

    name: bytes
    kind: bytes
    mode: int
    uid: int
    gid: int
    mtime: int
    link: bytes
    device: tuple[int, int]
    xattrs: tuple[tuple[bytes, bytes], ...]
    offset: int
    stored: int
    size: int
    extents: Extents | None
    lost: int = 0


def entries(stream: PlainStream, header_bytes: int, weigh: Weigh) -> Iterator[TarEntry]:
    """The entries in order; the caller may read an entry's data before the next entry.

    header_bytes: the bound on one PAX or long-name header. Raises Unpackable, Oversized, and weigh's errors.
    """
    extras = Extras()
    budget = HeaderBudget(header_bytes, weigh, stream.subject)
    while True:
        block = stream.take(BLOCK_BYTES)
        if not block or block == _ZERO:
            # For every common reader one zero block is the end, although the standard asks for two.
            return
        if len(block) < BLOCK_BYTES or not _checksum_fits(block):
            raise _bad(stream, "no tar header where one must be")
        kind = block[156:157]
        size = _number(block[124:136], stream)
        if size < 0:
            raise _bad(stream, "a negative size")
        if kind in (b"x", b"g", b"L", b"K"):
            budget.take(size, extras)
            data = stream.exactly(size)
            stream.skip(-size % BLOCK_BYTES)
            if kind == b"x":
                read_pax(data, extras, stream, budget.weigh)
            elif kind == b"L":
                extras.name = data.split(b"\0", 1)[0]
            elif kind == b"K":
                extras.link = data.split(b"\0", 1)[0]
            continue
        entry = _entry(block, kind, size, extras, stream)
        extras = Extras()
        # Headers and sparse maps are whole blocks: the data begins at a block.
        end = stream.offset + entry.stored + -entry.stored % BLOCK_BYTES
        yield entry
        stream.skip(end - stream.offset)


def _entry(block: bytes, kind: bytes, size: int, extras: Extras, stream: PlainStream) -> TarEntry:
    pax = extras.pax
    name, link = _names(block, extras)
    # GNU.sparse.name belongs to sparse files alone.
    if max(map(len, (name, link, pax.get(b"GNU.sparse.name", b"")))) > PATH_MAX:
        raise _bad(stream, f"a name longer than {PATH_MAX} bytes")
    known = _KINDS.get(kind)
    if known is None:
        raise _bad(stream, f"{shown_name(name)} is of the unknown type {kind!r}")
    if kind == b"\0" and name.endswith(b"/"):
        # How v7 wrote directories.
        known = DIR
    if b"size" in pax:
        size = _decimal(pax[b"size"], stream)
    extents: Extents | None = None
    full = size
    if known is not FILE:
        # Headers of other types may carry a size without data. Go ignores the size too.
        size = full = 0
    elif kind == b"S":
        extents, full = old_gnu_map(block, stream)
    elif b"GNU.sparse.major" in pax or b"GNU.sparse.map" in pax or extras.sparse_pairs:
        name = pax.get(b"GNU.sparse.name", name)
        if pax.get(b"GNU.sparse.major") == b"1":
            extents, full, used = stored_map(pax, size, stream)
            size -= used
        else:
            extents, full = pax_map(pax, extras.sparse_pairs, stream)
    if extents is not None and sum(length for _, length in extents) != size:
        raise _bad(stream, f"the sparse map of {shown_name(name)} does not match its data")
    mtime, lost = _mtime(pax.get(b"mtime"), block[136:148], stream)
    if any(key in pax for key in ACL_TEXTS):
        lost |= losses.ACL
    return TarEntry(
        name,
        known,
        _number(block[100:108], stream) & 0o7777,
        _owner(pax.get(b"uid"), block[108:116], stream, name),
        _owner(pax.get(b"gid"), block[116:124], stream, name),
        mtime,
        link,
        _device(block, stream) if known in (CHAR, BLOCKDEV) else (0, 0),
        tuple(sorted(extras.xattrs.items())),
        stream.offset,
        size,
        full,
        extents,
        lost,
    )


def _names(block: bytes, extras: Extras) -> tuple[bytes, bytes]:
    name = block[:100].split(b"\0", 1)[0]
    if block[257:265] == b"ustar\x0000":
        prefix = block[345:500].split(b"\0", 1)[0]
        if prefix:
            name = prefix + b"/" + name
    link = block[157:257].split(b"\0", 1)[0]
    if extras.name is not None:
        name = extras.name
    if extras.link is not None:
        link = extras.link
    return extras.pax.get(b"path", name), extras.pax.get(b"linkpath", link)


def _checksum_fits(block: bytes) -> bool:
    said = block[148:156].strip(b" \0")
    try:
        wanted = int(said, 8)
    except ValueError:
        return False
    field = block[148:156]
    if sum(block) - sum(field) + 8 * 0x20 == wanted:
        return True
    # Old Sun tars summed signed characters.
    signed = sum(memoryview(block).cast("b")) - sum(memoryview(field).cast("b")) + 8 * 0x20
    return signed == wanted


def _number(field: bytes, stream: PlainStream) -> int:
    if field[0] & 0x80:
        # Base 256 (GNU), two's complement without the top bit.
        value = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
        if field[0] & 0x40:
            value -= 1 << (8 * len(field) - 1)
        if not -(1 << 63) <= value < 1 << 63:
            raise _bad(stream, "a number beyond 64 bits")
        return value
    digits = field.strip(b" \0").split(b"\0", 1)[0]
    if not digits:
        return 0
    try:
        return int(digits, 8)
    except ValueError:
        raise _bad(stream, "a number that is not octal") from None


def _decimal(text: bytes, stream: PlainStream) -> int:
    if not text.isdigit() or len(text) > 19:
        raise _bad(stream, "a PAX number that is not decimal")
    return int(text)


def _owner(pax: bytes | None, field: bytes, stream: PlainStream, name: bytes) -> int:
    value = _decimal(pax, stream) if pax is not None else _number(field, stream)
    if not 0 <= value < 0xFFFFFFFF:
        raise _bad(stream, f"{shown_name(name)} has the owner {value}, which Linux cannot hold")
    return value


def _mtime(pax: bytes | None, field: bytes, stream: PlainStream) -> tuple[int, int]:
    """The nearest whole seconds within squashfs's range, and the loss."""
    lost = 0
    if pax is None:
        value = _number(field, stream)
    else:
        whole, _, fraction = pax.partition(b".")
        if not whole.lstrip(b"-").isdigit() or (fraction and not fraction.isdigit()) or len(whole) > 20:
            raise _bad(stream, "a PAX time that is not decimal")
        value = int(whole)
        if fraction.strip(b"0"):
            # Rounded down, as Go's archive/tar and the kernel do: -0.5 is in the second before 0.
            value -= whole.startswith(b"-")
            lost = losses.FRACTION
    if not 0 <= value <= losses.TIME_MAX:
        lost = losses.RANGE
    return min(max(value, 0), losses.TIME_MAX), lost


def _device(block: bytes, stream: PlainStream) -> tuple[int, int]:
    major, minor = _number(block[329:337], stream), _number(block[337:345], stream)
    if not (0 <= major < 1 << 12 and 0 <= minor < 1 << 20):
        raise _bad(stream, f"the device number {major}:{minor}, which Linux cannot hold")
    return major, minor


def _bad(stream: PlainStream, cause: str) -> Unpackable:
    return Unpackable("read layer", stream.subject, f"{cause}, at byte {stream.offset}")


def shown_name(name: bytes) -> str:
    """An untrusted name made safe for a message."""
    return repr(name[:200].decode("utf-8", "backslashreplace"))
