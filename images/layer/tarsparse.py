"""Maps of sparse files in tar: the old GNU form and PAX 0.0, 0.1 and 1.0.

Source: GNU tar manual, "Storing Sparse Files". An extent is (offset in the file, length), both in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from images.image_errors import Unpackable
from images.layer.stream import PlainStream

Extents = tuple[tuple[int, int], ...]
# tar2sqfs takes no longer maps.
MAX_EXTENTS = 60_000
_BLOCK_BYTES = 512
_MAX_SIZE_BYTES = 1 << 62
# The digits of a number below _MAX_SIZE_BYTES.
_DIGITS = 19
# Most blocks after the header in a map of the old form, with 21 parts each.
_OLD_BLOCKS = MAX_EXTENTS // 21 + 1


def old_gnu_map(block: bytes, stream: PlainStream) -> tuple[Extents, int]:
    """The map of a type S entry: in its header, then in further blocks as long as each announces another."""
    size = _octal(block[483:495], stream)
    pairs: list[int] = []
    _old_pairs(block[386:482], pairs, stream)
    more = block[482]
    blocks = 0
    while more:
        blocks += 1
        # Blocks without parts count as full.
        if len(pairs) > 2 * MAX_EXTENTS or blocks > _OLD_BLOCKS:
            raise _bad(stream, f"more than {MAX_EXTENTS} parts")
        block = stream.exactly(_BLOCK_BYTES)
        _old_pairs(block[:504], pairs, stream)
        more = block[504]
    return _checked(pairs, size, stream), size


def pax_map(pax: dict[bytes, bytes], pairs: Sequence[bytes], stream: PlainStream) -> tuple[Extents, int]:
    """The map of PAX 0.1 (one record) or 0.0 (a record for each number)."""
    size = _decimal(pax.get(b"GNU.sparse.size") or pax.get(b"GNU.sparse.realsize") or b"", stream)
    flat = pax.get(b"GNU.sparse.map")
    if (len(pairs) if flat is None else flat.count(b",") + 1) > 2 * MAX_EXTENTS:
        raise _bad(stream, f"more than {MAX_EXTENTS} parts")
    texts = pairs if flat is None else flat.split(b",")
    return _checked([_decimal(text, stream) for text in texts], size, stream), size


def stored_map(pax: dict[bytes, bytes], stored: int, stream: PlainStream) -> tuple[Extents, int, int]:
    """The map of PAX 1.0, stored before the data; also the map's length in bytes."""
    size = _decimal(pax.get(b"GNU.sparse.realsize", b""), stream)
    start, begun = stream.offset, b""
    numbers: list[int] = []
    wanted = 1
    while len(numbers) < wanted:
        if stream.offset - start + _BLOCK_BYTES > stored:
            raise _bad(stream, "ends inside its map")
        *lines, begun = (begun + stream.exactly(_BLOCK_BYTES)).split(b"\n")
        # After the last number comes padding.
        numbers += [_decimal(line, stream) for line in lines[: wanted - len(numbers)]]
        if wanted == 1 and numbers:
            if numbers[0] > MAX_EXTENTS:
                raise _bad(stream, f"{numbers[0]} parts, more than {MAX_EXTENTS}")
            wanted = 1 + 2 * numbers[0]
            numbers += [_decimal(line, stream) for line in lines[1:wanted]]
        if len(numbers) < wanted and len(begun) > _DIGITS:
            raise _bad(stream, "a number that is not decimal")
    return _checked(numbers[1:], size, stream), size, stream.offset - start


def _old_pairs(field: bytes, pairs: list[int], stream: PlainStream) -> None:
    for at in range(0, len(field), 24):
        if field[at] == 0:
            return
        pairs += [_octal(field[at : at + 12], stream), _octal(field[at + 12 : at + 24], stream)]


def _checked(numbers: Sequence[int], size: int, stream: PlainStream) -> Extents:
    if len(numbers) % 2:
        raise _bad(stream, "a part without a length")
    extents = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    end = 0
    for offset, length in extents:
        if offset < end or length < 0:
            raise _bad(stream, "parts that overlap")
        end = offset + length
    if end > size or size > _MAX_SIZE_BYTES:
        raise _bad(stream, "parts beyond the file's end")
    return tuple(extent for extent in extents if extent[1])


def _octal(field: bytes, stream: PlainStream) -> int:
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
    else:
        digits = field.strip(b" \0")
        if digits.strip(b"01234567"):
            raise _bad(stream, "a number that is not octal")
        value = int(digits or b"0", 8)
    if value > _MAX_SIZE_BYTES:
        raise _bad(stream, "a number out of range")
    return value


def _decimal(text: bytes, stream: PlainStream) -> int:
    if not text.isdigit() or len(text) > _DIGITS:
        raise _bad(stream, "a number that is not decimal")
    return int(text)


def _bad(stream: PlainStream, cause: str) -> Unpackable:
    return Unpackable("read layer", stream.subject, f"a sparse map has {cause}, at byte {stream.offset}")
