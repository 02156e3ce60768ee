#!/usr/bin/env python3
"""Write a Xen guest's initramfs: the zone's tree, a kernel's modules and their order, two device nodes.

Without --kernel it has no modules: for kernels that bring their own.  Without --root it has only modules:
that is what such a kernel brings (kernelimage.py).

The format is cpio's "newc" (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel).  It is
written here because a tool would need root for the device nodes, and to make the result reproducible.
"""

from __future__ import annotations

import argparse
import gzip
import lzma
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

MODULES = (
    "xen-gntalloc",
    "xen-gntdev",
    "xen-evtchn",
    "xen-blkfront",
    "xen-netfront",
    "squashfs",
    "erofs",
    "overlay",
)
"""The modules that a zone needs, unless built in."""

SHARING = ("9pnet-fd", "9p")
"""The modules for volumes.  Debian's cloud kernel lacks them."""

DEVICES = ("fuse", "tun", "loop", "xen-pcifront")
"""The modules for devices (/dev/fuse, /dev/net/tun, /dev/loop0 and so on), and PCI functions of the host."""

SCRATCH = ("crc32c-generic", "ext4")
"""The modules for scratch disks; the agent of a zone without a scratch disk removes them.

ext4 needs a driver of crc32c, which modprobe would load too (modules.softdep).
"""


class Archive:
    """A cpio archive.  Entries keep the order of their addition, belong to root, and have time 0."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inode = 0

    def add(self, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._inode += 1
        encoded = name.encode() + b"\0"
        links = 2 if stat.S_ISDIR(mode) else 1
        fields = (self._inode, mode, 0, 0, links, 0, len(content), 0, 0, *device, len(encoded), 0)
        header = b"070701" + b"".join(b"%08X" % value for value in fields)
        self._padded(header + encoded)
        self._padded(content)

    def finish(self) -> None:
        self.add("TRAILER!!!", 0)

    def _padded(self, data: bytes) -> None:
        self._file.write(data + b"\0" * (-len(data) % 4))


def stem(path: str) -> str:
    """Return a module's name: no directories, no suffix, hyphens for underscores."""
    return Path(path).name.split(".ko")[0].replace("_", "-")


def index_of(modules: Path) -> tuple[dict[str, tuple[str, list[str]]], set[str]]:
    """Return each module's file and the files it needs, by name; and the names of built-in modules."""
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[stem(path)] = (path, others.split())
    return needs, {stem(line) for line in (modules / "modules.builtin").read_text().splitlines()}


def sharing(modules: Path) -> tuple[str, ...]:
    """Return the modules of SHARING that the kernel has, or none without 9p."""
    needs, built_in = index_of(modules)
    there = tuple(name for name in SHARING if name in needs or name in built_in)
    if "9p" in there:  # before Linux 5.17 the transport is a part of 9pnet
        return there
    sys.stderr.write(f"initramfs: {modules.name} has no 9p: its zones cannot have volumes\n")
    return ()


def known(modules: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that the kernel has."""
    needs, built_in = index_of(modules)
    return tuple(name for name in names if name in needs or name in built_in)


def optional(modules: Path) -> tuple[str, ...]:
    """Return SHARING and DEVICES, as far as the kernel has them."""
    return (*sharing(modules), *known(modules, DEVICES))


def load_order(modules: Path, wanted: Sequence[str]) -> list[Path]:
    """Return the modules' files, each after its dependencies, without built-in modules."""
    needs, built_in = index_of(modules)
    order: list[str] = []

    def visit(path: str) -> None:
        # modules.dep lists all dependencies of a module, the nearest first.
        for other in reversed(needs[stem(path)][1]):
            if other not in order:
                order.append(other)
        if path not in order:
            order.append(path)

    for name in wanted:
        if name in needs:
            visit(needs[name][0])
        elif name not in built_in:
            raise SystemExit(f"initramfs: {modules.name} has no module {name}, nor is it built in")
    return [modules / path for path in order]


def unpacked(module: Path) -> bytes:
    """Return a module's content; many distributions compress their modules."""
    data = module.read_bytes()
    match module.suffix:
        case ".ko":
            return data
        case ".xz":
            return lzma.decompress(data)
        case ".gz":
            return gzip.decompress(data)
        case ".zst":
            return unpacked_by("zstd", module)
    raise SystemExit(f"initramfs: {module}: only .ko, .ko.xz, .ko.gz and .ko.zst can be read")


def unpacked_by(program: str, module: Path) -> bytes:
    """Return a module's content, decompressed by a program: Python has no zstd."""
    try:
        done = subprocess.run([program, "-dc", "--", str(module)], stdout=subprocess.PIPE, check=False)
    except FileNotFoundError:
        raise SystemExit(f"initramfs: {module}: needs {program} (Debian package {program})") from None
    if done.returncode:
        raise SystemExit(f"initramfs: {module}: {program} ended with {done.returncode}")
    return done.stdout


def tree(root: Path) -> Iterator[tuple[str, int, bytes]]:
    """Yield every directory, file and symlink below ``root``, parents first."""
    for here, directories, files in os.walk(root):
        directories.sort()
        for name in sorted(directories + files):
            path = Path(here) / name
            mode = path.lstat().st_mode
            if path.is_symlink():
                content = os.readlink(path).encode()
            else:
                content = b"" if path.is_dir() else path.read_bytes()
            yield str(path.relative_to(root)), mode, content


def write(root: Path | None, modules: Path | None, output: Path, wanted: Sequence[str] = MODULES) -> None:
    """Write the archive; it appears only when complete.  None leaves a part out."""
    draft = output.with_suffix(f".{os.getpid()}.new")
    with draft.open("wb") as file:
        archive = Archive(file)
        if root is not None:
            for name, mode, content in tree(root):
                archive.add(name, mode, content)
            archive.add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
            archive.add("dev/null", stat.S_IFCHR | 0o666, device=(1, 3))
        else:
            archive.add("lib", stat.S_IFDIR | 0o755)
            archive.add("lib/modules", stat.S_IFDIR | 0o755)
        if modules is not None:
            order = load_order(modules, wanted)
            add_modules(archive, "lib/modules", order)
            also = [path for path in load_order(modules, known(modules, SCRATCH)) if path not in order]
            archive.add("lib/modules/scratch", stat.S_IFDIR | 0o755)
            add_modules(archive, "lib/modules/scratch", also)
        archive.finish()
    draft.rename(output)


def add_modules(archive: Archive, folder: str, files: Sequence[Path]) -> None:
    """Add the unpacked files to the folder, with their load order."""
    plain = {path.name.split(".ko")[0] + ".ko": path for path in files}
    for name, path in plain.items():
        archive.add(f"{folder}/{name}", stat.S_IFREG | 0o644, unpacked(path))
    names = "".join(f"{name}\n" for name in plain)
    archive.add(f"{folder}/order", stat.S_IFREG | 0o644, names.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, help="the zone's tree")
    parser.add_argument("--kernel", help="a version below /lib/modules")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--module", action="append", default=[], help="one more than a Xen guest needs")
    options = parser.parse_args()
    modules = installed(options.kernel) if options.kernel else None
    wanted = (*options.module, *MODULES, *optional(modules)) if modules else ()
    write(options.root, modules, options.output, wanted)


def installed(version: str) -> Path:
    """Return the directory of an installed kernel's modules."""
    modules = Path("/lib/modules") / version
    if not (modules / "modules.dep").exists():
        raise SystemExit(f"initramfs: {modules}/modules.dep: not there; is the kernel's package installed?")
    return modules


if __name__ == "__main__":
    main()
