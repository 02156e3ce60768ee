"""ELF images with notes, as far as a domain builder looks at them (elf(5))."""

from __future__ import annotations

import struct
from collections.abc import Sequence

Note = tuple[bytes, int]
"""Owner, without its NUL, and type."""
PV: Sequence[Note] = ((b"GNU", 3), (b"Xen", 6), (b"Xen", 5), (b"Xen", 1))
PVH: Sequence[Note] = ((b"GNU", 3), (b"Xen", 6), (b"Xen", 18))


def image(notes: Sequence[Note], *, wide: bool = True) -> bytes:
    """Header, two segments, of which the second has the notes; ``wide``: of 64 bits."""
    content = b"".join(note(*one) for one in notes)
    if wide:
        segments = [struct.pack("<IIQ16xQ16x", kind, 4, 0xB0, len(content)) for kind in (1, 4)]
        head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<16xQ14xHH", 0x40, 56, 2)
    else:
        segments = [struct.pack("<II8xI12x", kind, 0xB0, len(content)) for kind in (1, 4)]
        head = b"\x7fELF\1\1\1" + bytes(9) + struct.pack("<12xI10xHH", 0x40, 32, 2)
    return (head.ljust(0x40, b"\0") + b"".join(segments)).ljust(0xB0, b"\0") + content


def note(owner: bytes, kind: int, content: bytes = b"sixsix") -> bytes:
    """A note: three numbers, then name and content on multiples of four bytes."""
    name = owner + b"\0"
    parts = (part + bytes(-len(part) % 4) for part in (name, content))
    return struct.pack("<III", len(name), len(content), kind) + b"".join(parts)
