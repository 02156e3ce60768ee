"""The zone kernel as an uncompressed image, and its features.  It is unpacked once for all creates.

Source: Documentation/x86/boot.rst of Linux (the setup header of a bzImage).
"""

from __future__ import annotations

import bz2
import lzma
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from daemonkit.faults import Broken, Invalid, Missing
from daemonkit.host.children import settle
from protect.model.toolstack import Mode

_SETUP_SECTS, _MAGIC, _VERSION, _PAYLOAD = 0x1F1, 0x202, 0x20E, 0x248
_HEADER_BYTES = 32768  # the setup code includes the version, and has at most 64 sectors
_ELF = b"\x7fELF"
_LARGEST_BYTES = 512 << 20
_LARGEST_IMAGE_BYTES = 256 << 20
_UNPACKER_MEMORY_BYTES = 256 << 20
_UNPACKER_SECONDS = 60.0

# By EI_CLASS: the segment fields of the file's header (offset, size of an entry, count), and the fields of a
# segment (type, offset, size).  elf(5)
_LAYOUTS = {
    b"\1": (struct.Struct("<28xI10xHH"), struct.Struct("<II8xI")),
    b"\2": (struct.Struct("<32xQ14xHH"), struct.Struct("<I4xQ16xQ")),
}
_NOTE = struct.Struct("<III")
_PT_NOTE = 4
_MOST_SEGMENTS, _MOST_NOTES = 64, 64 << 10
# Types of notes of the owner "Xen" (xen/include/public/elfnote.h).
_ENTRY, _GUEST_OS, _PHYS32_ENTRY = 1, 6, 18


def kernel_version(image: Path) -> str:
    """The future ``uname -r`` of a bzImage.  Invalid for an ELF image, which does not tell."""
    try:
        with image.open("rb") as file:
            head = file.read(_HEADER_BYTES)
    except OSError as error:
        raise Missing("read zone kernel", str(image), error.strerror or str(error)) from error
    if len(head) < _PAYLOAD or head[_MAGIC : _MAGIC + 4] != b"HdrS":
        raise Invalid("read zone kernel", str(image), "not a bzImage", "set libxl.initramfs as well")
    (offset,) = struct.unpack_from("<H", head, _VERSION)
    text = head[offset + 512 :].split(b"\0", 1)[0]
    return text.split(b" ", 1)[0].decode(errors="replace")


def unpacked_kernel(image: Path, cache: Path) -> Path:
    """The ELF image inside ``image`` (a bzImage, or already an ELF image), kept in ``cache``.

    Missing: no such file; Invalid: not a kernel; Broken: the unpacking program is not installed.
    """
    try:
        size = image.stat().st_size
        data = image.read_bytes() if size <= _LARGEST_IMAGE_BYTES else b""
    except OSError as error:
        raise Missing("read zone kernel", str(image), error.strerror or str(error)) from error
    if not data:
        raise Invalid("read zone kernel", str(image), f"{size} bytes are not 1 to {_LARGEST_IMAGE_BYTES}")
    if data.startswith(_ELF):
        return image
    target = cache / f"vmlinux-{sha256(data).hexdigest()[:32]}"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        _write_whole(target, unpack(data, str(image)))
        for older in cache.glob("vmlinux-*"):
            if older != target:
                older.unlink(missing_ok=True)
    return target


def contains(file: Path, text: bytes) -> bool:
    """Whether a file has the bytes."""
    if not file.stat().st_size:
        return False
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0


def has_user_namespaces(kernel: Path) -> bool:
    """Whether an ELF image has CONFIG_USER_NS: then it names the slab cache (kernel/user_namespace.c)."""
    return contains(kernel, b"\0user_namespace\0")


def hotplugs_memory(kernel: Path) -> bool:
    """Whether an ELF image has CONFIG_XEN_BALLOON_MEMORY_HOTPLUG: then it names a sysctl (xen/balloon.c)."""
    return contains(kernel, b"\0hotplug_unpopulated\0")


def boot_modes(kernel: Path) -> frozenset[Mode]:
    """Boot modes of an ELF image, by its notes for Xen: PV and PVH have different entry points.

    PVH's entry alone may be for other hypervisors (CONFIG_PVH without CONFIG_XEN).
    """
    with kernel.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        kinds = {kind for owner, kind in _notes(image) if owner == b"Xen\0"}
    wanted = {Mode.PV: {_ENTRY}, Mode.PVH: {_GUEST_OS, _PHYS32_ENTRY}}
    return frozenset(mode for mode in Mode if wanted[mode] <= kinds)


def _notes(untrusted: mmap.mmap) -> Iterator[tuple[bytes, int]]:
    """Owner and type of each note; fewer or none if the file is malformed."""
    if (layout := _LAYOUTS.get(untrusted[4:5])) is None:
        return
    head, segment = layout
    try:
        table, step, count = head.unpack_from(untrusted)
        for number in range(min(count, _MOST_SEGMENTS)):
            kind, offset, size = segment.unpack_from(untrusted, table + number * step)
            if kind == _PT_NOTE:
                yield from _notes_in(untrusted[offset : offset + min(size, _MOST_NOTES)])
    except (struct.error, OverflowError):  # outside of the file
        return


def _notes_in(untrusted: bytes) -> Iterator[tuple[bytes, int]]:
    place = 0
    while place + _NOTE.size <= len(untrusted):
        owner, content, kind = _NOTE.unpack_from(untrusted, place)
        place += _NOTE.size
        yield untrusted[place : place + owner], kind
        place += -(-owner // 4) * 4 + -(-content // 4) * 4


def unpack(data: bytes, subject: str) -> bytes:
    """The ELF image inside the bzImage ``data``."""
    payload = _payload(data, subject)
    for magic, decompress in _FORMATS:
        if payload.startswith(magic):
            try:
                kernel = decompress(payload)
            except (OSError, ValueError, EOFError, zlib.error, lzma.LZMAError) as error:
                raise Invalid("unpack zone kernel", subject, str(error)) from error
            break
    else:
        raise Invalid("unpack zone kernel", subject, f"unknown compression {payload[:6].hex()}")
    if not kernel.startswith(_ELF):
        raise Invalid("unpack zone kernel", subject, "what is inside is no ELF image")
    return kernel


def _payload(data: bytes, subject: str) -> bytes:
    if len(data) < 0x250 or data[_MAGIC : _MAGIC + 4] != b"HdrS":
        raise Invalid("unpack zone kernel", subject, "neither a bzImage nor an ELF image")
    offset, length = struct.unpack_from("<II", data, _PAYLOAD)
    start = ((data[_SETUP_SECTS] or 4) + 1) * 512 + offset
    if not 0 < length <= len(data) - start:
        raise Invalid("unpack zone kernel", subject, "its payload lies outside the file")
    return data[start : start + length]


def _xz(payload: bytes) -> bytes:
    unpacker = lzma.LZMADecompressor(memlimit=_UNPACKER_MEMORY_BYTES)
    # stops at the end of the data: the length after the data is ignored
    return _all(unpacker.decompress(payload, _LARGEST_BYTES), unpacker.eof)


def _gzip(payload: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    return _all(unpacker.decompress(payload, _LARGEST_BYTES), unpacker.eof)


def _bzip2(payload: bytes) -> bytes:
    unpacker = bz2.BZ2Decompressor()
    return _all(unpacker.decompress(payload, _LARGEST_BYTES), unpacker.eof)


def _all(data: bytes, complete: bool) -> bytes:
    if not complete:
        raise ValueError(f"incomplete, or larger than {_LARGEST_BYTES} bytes")
    return data


def _filter(program: str, *options: str) -> Callable[[bytes], bytes]:
    """Decompress by the named program, without the unpacked length that the kernel appends."""

    def decompress(payload: bytes) -> bytes:
        if shutil.which(program) is None:
            raise Broken(
                "unpack zone kernel", "", f"{program} is not installed", f"apt-get install {program}"
            )
        # Through files, not pipes: pipes would take most of the time for tens of megabytes.
        with tempfile.TemporaryFile() as packed, tempfile.TemporaryFile() as unpacked:
            packed.write(payload[:-4])
            packed.seek(0)
            # Malicious input may unpack to fill the disk, or may run for ever.
            command = ["prlimit", f"--fsize={_LARGEST_BYTES}", "--core=0", program, *options]
            with subprocess.Popen(command, stdin=packed, stdout=unpacked, stderr=subprocess.PIPE) as process:
                settle(process.pid)
                try:
                    _, said = process.communicate(timeout=_UNPACKER_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise ValueError(f"{program} takes longer than {_UNPACKER_SECONDS:.0f} s") from None
            if process.returncode:
                raise ValueError(f"{program}: {said.decode(errors='replace').strip()}")
            unpacked.seek(0)
            return unpacked.read(_LARGEST_BYTES)

    return decompress


_FORMATS: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
    (b"\xfd7zXZ\0", _xz),
    (b"\x1f\x8b\x08", _gzip),
    (b"BZh", _bzip2),
    (b"\x5d\0\0", _xz),
    (b"\x02\x21\x4c\x18", _filter("lz4", "-dc")),
    (b"\x28\xb5\x2f\xfd", _filter("zstd", "-dcq")),
)


def _write_whole(target: Path, data: bytes) -> None:
    """Write a file atomically: ``target`` has the whole data or does not change, even at a power cut."""
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".vmlinux-", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
