"""The kernels that domains boot, unpacked and cached."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from daemonkit.faults import Missing
from protect.model.errors import ToolstackError
from protect.model.toolstack import DomainKernel
from protect.toolstack.libxl.boot import Boot
from protect.toolstack.libxl.kernel import unpacked_kernel

ADDONS = "xvdzz"
"""The disk of a kernel's addons: the last possible name, beyond all other disks."""

_KEPT_KERNELS = 4
_Identity: TypeAlias = tuple[tuple[int, int, int, int], ...]


class KernelCache:
    """``own`` boots domains without a kernel of their own.  Other kernels are unpacked one at a time, to save
    memory.  A created domain no longer needs its kernel's files.
    """

    def __init__(self, own: Boot, guest_dir: Path, cache: Path) -> None:
        self._own = own
        self._guest = guest_dir / "initramfs.cpio"
        self._cache = cache
        self._lock = asyncio.Lock()
        self._serial = itertools.count(1)
        self._known: OrderedDict[_Identity, Boot] = OrderedDict()
        self._used: Counter[_Identity] = Counter()

    def prepare(self) -> None:
        """Remove files of an earlier run; call this before the first domain.  OSError."""
        if self._cache.exists():
            shutil.rmtree(self._cache)

    @asynccontextmanager
    async def unpacked(self, kernel: DomainKernel | None) -> AsyncIterator[Boot]:
        """Unpack a kernel; its files stay while the body runs.  Missing, Invalid, Broken, ToolstackError."""
        if kernel is None:
            yield self._own
            return
        async with self._lock:
            identity, boot = await asyncio.to_thread(self._find, kernel)
            self._used[identity] += 1
        try:
            yield boot
        finally:
            self._used[identity] -= 1
            self._used += Counter()

    def _find(self, kernel: DomainKernel) -> tuple[_Identity, Boot]:
        if not self._guest.is_file():
            hint = "build it with `make -C zone initramfs`"
            raise Missing("find initramfs", str(self._guest), "no such file", hint)
        try:
            identity = tuple(
                _identity(path) for path in (kernel.image, kernel.initramfs, self._guest) if path
            )
            if identity not in self._known:
                self._known[identity] = self._unpack(kernel)
                self._forget_oldest()
        except FileNotFoundError as error:
            raise Missing("read zone kernel", kernel.name, f"there is no {error.filename}") from error
        except OSError as error:
            raise ToolstackError("read zone kernel", kernel.name, str(error)) from error
        self._known.move_to_end(identity)
        return identity, self._known[identity]

    def _unpack(self, kernel: DomainKernel) -> Boot:
        folder = self._cache / str(next(self._serial))
        folder.mkdir(mode=0o700, parents=True)
        try:
            image = unpacked_kernel(kernel.image, folder)
            initramfs = self._guest
            if kernel.initramfs:
                initramfs = folder / "initramfs"
                concatenate((kernel.initramfs, self._guest), initramfs)
            return Boot.of(image, initramfs)
        except BaseException:
            shutil.rmtree(folder)
            raise

    def _forget_oldest(self) -> None:
        for identity in list(self._known)[:-_KEPT_KERNELS]:
            if not self._used[identity]:
                boot = self._known.pop(identity)
                for path in (boot.kernel, boot.initramfs):
                    if path.is_relative_to(self._cache):
                        path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int, int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def concatenate(parts: tuple[Path, ...], target: Path) -> None:
    """Concatenate cpio archives, each padded to 4 bytes as the kernel requires
    (Documentation/driver-api/early-userspace/buffer-format.rst).  Of files with the same name the last wins.
    """
    with target.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file)
            file.write(bytes(-file.tell() % 4))
        os.fchmod(file.fileno(), 0o400)
