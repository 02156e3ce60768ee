"""A guest for tests of the binding and the toolstack without an agent: peer.c as its first process."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.xen.images import modules
from tests.xen.images.initramfs import pack

SOURCE = Path(__file__).parent / "guest" / "peer.c"
MODULES = ("xen-blkfront", "xen-netfront", "xen-gntalloc", "xen-gntdev", "xen-evtchn")
LIBRARIES = ("xenvchan", "xenstore", "xengnttab", "xenevtchn", "xentoollog", "xentoolcore")


def build(kernel_version: str, folder: Path) -> Path:
    """Write ``folder/guest.cpio`` for this kernel (about 2 MB)."""
    root = folder / "guest-root"
    for name in ("dev", "proc", "modules"):
        (root / name).mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-static", "-Os", "-Wall", "-ffunction-sections", "-Wl,--gc-sections", "-s"]
    libraries = [f"-l{name}" for name in LIBRARIES]
    subprocess.run([*command, str(SOURCE), "-o", str(root / "init"), *libraries, "-lpthread"], check=True)
    for number, module in enumerate(modules.files(kernel_version, MODULES)):
        modules.copy(module, root / "modules" / f"{number:02}.ko")
    image = pack(root, folder / "guest.cpio")
    shutil.rmtree(root)
    return image
