#!/usr/bin/env python3
"""Write a Xen guest's initramfs: the zone's tree, a kernel's modules and their order, two device nodes.

Without --kernel there are no modules: for kernels that bring their own.  Without --root there is nothing
else: what such a kernel brings (kernelimage.py).

The format is cpio's "newc" (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel);
written here, because device nodes would need root otherwise, and the result is reproducible.
"""

from __future__ import annotations

import argparse
import os
import stat
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
"""What a zone needs, where the kernel does not have it built in."""

SHARING = ("9pnet-xen", "9p")
"""For volumes; Debian's cloud kernel has none of it."""


class Archive:
    """Entries in the order they are added; owner root, time zero."""

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
    """A module's name: without directories and endings, hyphens for underscores."""
    return Path(path).name.split(".ko")[0].replace("_", "-")


def known(modules: Path) -> tuple[dict[str, tuple[str, list[str]]], set[str]]:
    """By name: each module's file and those it needs; then what is built in."""
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[stem(path)] = (path, others.split())
    return needs, {stem(line) for line in (modules / "modules.builtin").read_text().splitlines()}


def sharing(modules: Path) -> tuple[str, ...]:
    """SHARING, where the kernel has it."""
    needs, built_in = known(modules)
    if all(name in needs or name in built_in for name in SHARING):
        return SHARING
    sys.stderr.write(f"initramfs: {modules.name} has no 9p: its zones cannot have volumes\n")
    return ()


def load_order(modules: Path, wanted: Sequence[str]) -> list[Path]:
    """The modules' files, each after those it needs; built-in ones are left out."""
    needs, built_in = known(modules)
    order: list[str] = []

    def visit(path: str) -> None:
        # modules.dep lists all that a module needs, the nearest first.
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
    compressed = [path for path in order if not path.endswith(".ko")]
    if compressed:
        raise SystemExit(f"initramfs: compressed modules are not supported: {compressed[0]}")
    return [modules / path for path in order]


def tree(root: Path) -> Iterator[tuple[str, int, bytes]]:
    """Every directory, file and symlink below ``root``, parents first."""
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
    """The whole archive, in place only when it is complete.  Of what is None there is nothing in it."""
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
            add_modules(archive, load_order(modules, wanted))
        archive.finish()
    draft.rename(output)


def add_modules(archive: Archive, files: Sequence[Path]) -> None:
    """The files beside each other, and the order to load them in."""
    for path in files:
        archive.add(f"lib/modules/{path.name}", stat.S_IFREG | 0o644, path.read_bytes())
    names = "".join(f"{path.name}\n" for path in files)
    archive.add("lib/modules/order", stat.S_IFREG | 0o644, names.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, help="the zone's tree")
    parser.add_argument("--kernel", help="a version below /lib/modules")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--module", action="append", default=[], help="one more than a Xen guest needs")
    options = parser.parse_args()
    modules = installed(options.kernel) if options.kernel else None
    wanted = (*options.module, *MODULES, *sharing(modules)) if modules else ()
    write(options.root, modules, options.output, wanted)


def installed(version: str) -> Path:
    """Where a kernel's modules are."""
    modules = Path("/lib/modules") / version
    if not (modules / "modules.dep").exists():
        raise SystemExit(f"initramfs: {modules}/modules.dep: not there; is the kernel's package installed?")
    return modules


if __name__ == "__main__":
    main()
