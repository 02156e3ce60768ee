"""Builds dom0's initramfs: busybox with its libraries, the modules for the host's root, init."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.xen.images import modules
from tests.xen.images.initramfs import pack
from tests.xen.parts import Parts
from tests.xen.snapshot import Snapshot

HERE = Path(__file__).parent
EARLY_MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "9pnet_virtio", "9p", "squashfs", "overlay")


def build(parts: Parts, folder: Path, images: Sequence[Snapshot]) -> Path:
    """Write ``folder/dom0.cpio`` (about 10 MB, uncompressed: nothing to decompress in emulation)."""
    root = folder / "dom0-root"
    for name in ("bin", "modules", "proc", "sys", "dev", "host", "cow", "newroot", "snap"):
        (root / name).mkdir(parents=True, exist_ok=True)
    _add_busybox(parts.busybox, root)
    for number, module in enumerate(modules.files(parts.kernel_version, EARLY_MODULES)):
        modules.copy(module, root / "modules" / f"{number:02}-{module.name.removesuffix('.xz')}")
    # The first image is /dev/vda, the second /dev/vdb, ...
    (root / "images").write_text("".join(f"{image.path}\n" for image in images))
    shutil.copy(HERE / "dom0" / "init", root / "init")
    (root / "init").chmod(0o755)
    image = pack(root, folder / "dom0.cpio")
    shutil.rmtree(root)
    return image


def _add_busybox(busybox: Path, root: Path) -> None:
    """Copy busybox and, if it is dynamic, its libraries."""
    shutil.copy(busybox, root / "bin" / "busybox")
    (root / "bin" / "sh").symlink_to("busybox")
    listed = subprocess.run(["ldd", str(busybox)], capture_output=True, text=True, check=False)
    for library in re.findall(r"(/\S+) \(0x", listed.stdout):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
