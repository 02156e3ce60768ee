"""Assembles BPF programs for the kernel's traffic control, and loads them.

Sources: bpf(2); linux/bpf.h, linux/bpf_common.h; Documentation/bpf/standardization/instruction-set.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from daemonkit.faults import Broken

_LOAD = 5  # BPF_PROG_LOAD
_SCHED_CLS = 3  # BPF_PROG_TYPE_SCHED_CLS
_LICENSE = b"Apache-2.0"
_SYSCALL = {"x86_64": 321}.get(os.uname().machine, 280)
_INSTRUCTION = struct.Struct("<BBhi")
_ATTRIBUTES = struct.Struct("<IIQQIIQII16s")
_REDIRECT = 23  # BPF_FUNC_redirect
_SHOT = 2  # TC_ACT_SHOT
_LENGTH, _VLAN_PRESENT = 0, 20  # of struct __sk_buff
_LOADS = {1: 0x30, 2: 0x28, 4: 0x20}  # BPF_LD | BPF_ABS by the number of bytes, into r0
_FROM_PLACE = 0x20  # added for BPF_IND: offsets relative to a register

_ATTEMPTS = 5
"""Tries of a load.  A pending signal aborts the kernel's check (EAGAIN; do_check() of its verifier)."""

_libc = ctypes.CDLL(None, use_errno=True)


class Program:
    """A program that decides about a frame; jumps lead forward, to labels.

    A frame is sent out (``redirect``) or dropped (``drop``).  If a load reaches beyond the end of a frame,
    the kernel ends the program and gives the frame to the host's own stack; therefore call ``at_least``
    first.  After ``place``, sizes and offsets count from a place inside the frame; the frame's content can
    move the place.
    """

    def __init__(self) -> None:
        self._code = bytearray()
        self._jumps: list[tuple[int, str]] = []
        self._labels: dict[str, int] = {}
        self._placed = False
        self._add(0xBF, 0x16)  # r6 = r1, the frame, as loads require

    def place(self, offset: int) -> None:
        """Set the place; later sizes and offsets are relative to the place."""
        self._placed = True
        self._add(0xB7, 0x07, 0, offset)  # r7 is the place

    def move_place(self, size: int) -> None:
        """Move the place on by ``size`` bytes."""
        self._add(0x07, 0x07, 0, size)

    def move_place_by(self, offset: int, unit: int) -> None:
        """Move the place on by the byte at the offset times ``unit`` bytes, a power of two."""
        self._load(offset, 1)
        self._add(0x67, 0x00, 0, unit.bit_length() - 1)
        self._add(0x0F, 0x07)

    def keep(self, offset: int) -> None:
        """Keep the byte at the offset, for ``jump_if_kept``."""
        self._load(offset, 1)
        self._add(0xBF, 0x08)  # r8 = r0

    def jump_if_kept(self, value: bytes, label: str) -> None:
        """Go to the label if the kept byte equals ``value``."""
        self._add(0xBF, 0x80)
        self._jump(0x16, value[0], label)

    def at_least(self, size: int, otherwise: str) -> None:
        """Go on if the frame has at least ``size`` bytes."""
        self._add(0x61, 0x60, _LENGTH)
        if self._placed:
            self._add(0x1F, 0x70)  # the number of bytes from the place on, if any
            self._jump(0xC6, size, otherwise)
        else:
            self._jump(0xA6, size, otherwise)

    def untagged(self, otherwise: str) -> None:
        """Go on if the frame has no VLAN tag that the interface has stripped."""
        self._add(0x61, 0x60, _VLAN_PRESENT)
        self._jump(0x56, 0, otherwise)

    def equal(self, offset: int, value: bytes, otherwise: str) -> None:
        """Go on if the bytes at the offset equal ``value``."""
        for at, part in _parts(offset, value):
            self._load(at, len(part))
            self._jump(0x56, int.from_bytes(part, "big"), otherwise)

    def jump_if(self, offset: int, value: bytes, label: str) -> None:
        """Go to the label if the one, two or four bytes at the offset equal ``value``."""
        self._load(offset, len(value))
        self._jump(0x16, int.from_bytes(value, "big"), label)

    def jump_if_set(self, offset: int, mask: bytes, label: str) -> None:
        """Go to the label if a bit of the mask is set in the one, two or four bytes at the offset."""
        self._load(offset, len(mask))
        self._jump(0x46, int.from_bytes(mask, "big"), label)

    def jump(self, label: str) -> None:
        """Go to the label."""
        self._jumps.append((len(self._code), label))
        self._add(0x05)

    def label(self, name: str) -> None:
        """Set a label here, for jumps to this name."""
        self._labels[name] = len(self._code) // _INSTRUCTION.size

    def drop(self) -> None:
        """Drop the frame."""
        self._add(0xB7, 0x00, 0, _SHOT)
        self._add(0x95)

    def redirect(self, interface: int) -> None:
        """Send the frame out at the interface of this index."""
        self._add(0xB7, 0x01, 0, interface)
        self._add(0xB7, 0x02)
        self._add(0x85, 0, 0, _REDIRECT)
        self._add(0x95)

    def encoded(self) -> bytes:
        """The instructions with jumps resolved."""
        code = bytearray(self._code)
        for at, label in self._jumps:
            offset = self._labels[label] - at // _INSTRUCTION.size - 1
            struct.pack_into("<h", code, at + 2, offset)
        return bytes(code)

    def load(self) -> int:
        """Load the program; returns its descriptor.  Broken: the kernel's reason for its refusal."""
        code = self.encoded()
        license_text = ctypes.create_string_buffer(_LICENSE)
        instructions = ctypes.create_string_buffer(code, len(code))
        count = len(code) // _INSTRUCTION.size
        addresses = ctypes.addressof(instructions), ctypes.addressof(license_text)
        attributes = _ATTRIBUTES.pack(_SCHED_CLS, count, *addresses, 0, 0, 0, 0, 0, b"xenpod")
        for _ in range(_ATTEMPTS):
            descriptor: int = _libc.syscall(
                ctypes.c_long(_SYSCALL), _LOAD, attributes, ctypes.c_uint(len(attributes))
            )
            number = ctypes.get_errno() if descriptor < 0 else 0
            if number != errno.EAGAIN:
                break
        if number:
            hint = "the kernel must allow bpf(2) to root" if number in (errno.EPERM, errno.ENOSYS) else ""
            raise Broken("filter frames", "of a zone", f"bpf: {os.strerror(number)}", hint)
        return descriptor

    def _load(self, offset: int, size: int) -> None:
        if self._placed:
            self._add(_LOADS[size] + _FROM_PLACE, 0x70, 0, offset)
        else:
            self._add(_LOADS[size], 0, 0, offset)

    def _jump(self, code: int, value: int, label: str) -> None:
        """Add a jump that compares the 32 bits of r0 with a constant (BPF_JMP32)."""
        self._jumps.append((len(self._code), label))
        self._add(code, 0, 0, value - (1 << 32) if value >= 1 << 31 else value)

    def _add(self, code: int, registers: int = 0, offset: int = 0, constant: int = 0) -> None:
        self._code += _INSTRUCTION.pack(code, registers, offset, constant)


def _parts(offset: int, value: bytes) -> Sequence[tuple[int, bytes]]:
    """Cut bytes into pieces for single loads, with their offsets."""
    parts, at = [], 0
    while at < len(value):
        size = next(size for size in (4, 2, 1) if size <= len(value) - at)
        parts.append((offset + at, value[at : at + size]))
        at += size
    return parts
