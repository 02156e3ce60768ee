"""A root filesystem for tests of zones."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

APPLETS = (
    "sh cat echo sleep true false ls ps dd yes stty kill head tail id mount seq tr wc touch "
    "sha256sum env printf hostname ip test rm mkdir"
).split()


def busybox_squashfs(base: Path) -> Path:
    """A squashfs file below ``base`` with the host's busybox, its applets as hard links."""
    tree = base / "tree"
    for name in ("bin", "proc", "dev", "sys", "etc", "tmp"):
        (tree / name).mkdir(parents=True)
    (tree / "etc/resolv.conf").touch()
    # The root directory's own attributes are something that an overlay must show.
    tree.chmod(0o751)
    busybox = Path(shutil.which("busybox") or "")
    shutil.copy(busybox, tree / "bin/busybox")
    libraries = subprocess.run(["ldd", str(busybox)], capture_output=True, text=True).stdout.split()
    for library in (word for word in libraries if word.startswith("/")):
        there = tree / library.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, there)
    for applet in APPLETS:
        os.link(tree / "bin/busybox", tree / "bin" / applet)
    out = base / "image.squashfs"
    subprocess.run(["mksquashfs", str(tree), str(out), "-quiet", "-no-progress"], check=True)
    return out
