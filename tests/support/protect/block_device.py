"""A block device of a test: a loop device on a file, by which the zones' loop devices are found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protect.host.loops import take_loop

SIZE = 8 << 20


@contextmanager
def block_device(folder: Path, name: str = "device") -> Iterator[Path]:
    """The device node; the file is in ``folder``, whose loop devices no test counts."""
    backing = folder / name
    backing.write_bytes(bytes(SIZE))
    loop = take_loop(backing, readonly=False)
    try:
        yield loop.path
    finally:
        loop.close()


def is_free(device: Path) -> bool:
    """Whether the host could mount the device."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_EXCL))
    except OSError:
        return False
    return True


def written(device: Path) -> bytes:
    """The text at the start of the device."""
    return device.read_bytes()[:512].split(b"\0")[0]
