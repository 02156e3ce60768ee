"""cpio archives in the kernel's format."""

from __future__ import annotations

import subprocess
from pathlib import Path


def pack(root: Path, target: Path) -> Path:
    """Write ``target`` from the tree ``root``, uncompressed."""
    names = subprocess.run(["find", "."], cwd=root, check=True, stdout=subprocess.PIPE).stdout
    with target.open("wb") as out:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, check=True, input=names, stdout=out)
    return target
