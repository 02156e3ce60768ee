"""The checkout and Python for dom0: squashfs images of the present state, on block devices.

dom0 could read the files over 9p, like the rest of the host's files.  But Python opens thousands of small
files, each with a dozen round trips in emulation; and a file with changes on the host during the run would be
read half old and half new.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

_CHECKOUT_WITHOUT = (".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis")
_STDLIB_WITHOUT = ("site-packages", "test", "idlelib", "ensurepip", "tkinter", "lib2to3")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The present content of ``path``; dom0 sees the content of ``file`` at its path, and may change its own
    view.
    """

    path: Path
    file: Path


def build(checkout: Path, folder: Path) -> list[Snapshot]:
    """Images of the checkout, of a virtual environment outside of it, and of the standard library."""
    images = [_squash(checkout, folder / "checkout.squashfs", _CHECKOUT_WITHOUT)]
    environment = Path(sys.prefix)
    if environment == Path(sys.base_prefix):
        return images  # no virtual environment: the packages are at any path, and come over 9p
    if not environment.is_relative_to(checkout):
        images.append(_squash(environment, folder / "environment.squashfs", ()))
    stdlib = Path(sysconfig.get_path("stdlib"))
    images.append(_squash(stdlib, folder / "stdlib.squashfs", _STDLIB_WITHOUT))
    return images


def _squash(path: Path, file: Path, without: tuple[str, ...]) -> Snapshot:
    """Uncompressed: in emulation reading costs more than writing on the host."""
    options = ["-noappend", "-quiet", "-no-progress", "-noI", "-noD", "-noF", "-noX"]
    if without:
        options += ["-e", *without]
    subprocess.run(["mksquashfs", str(path), str(file), *options], check=True, stdout=subprocess.DEVNULL)
    return Snapshot(path, file)
