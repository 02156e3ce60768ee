"""An installed kernel's modules as in a kernel image: some early, the rest as addons."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.agent.zone import ZONE

_CODE = """
import sys, pathlib, initramfs, kernelimage
folder, version, early, late = sys.argv[1:]
folder, modules = pathlib.Path(folder), initramfs.installed(version)
initramfs.write(None, modules, folder / "early.cpio", early.split())
for path in initramfs.load_order(modules, late.split()):
    print(path.relative_to(modules))
"""
_PACK = "import sys, pathlib, kernelimage; kernelimage.squashfs(*map(pathlib.Path, sys.argv[1:]))"


def early_and_addons(
    version: str, folder: Path, early: Sequence[str], late: Sequence[str]
) -> tuple[Path, Path]:
    """``/kernel/initramfs`` and ``/kernel/addons.squashfs``, by zone's own tools."""
    words = [str(folder), version, " ".join(early), " ".join(late)]
    files = _run(_CODE, *words).split()
    assert files
    installed, tree = Path("/lib/modules") / version, folder / "tree"
    for name in files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(installed / name, tree / name)
    lines = (installed / "modules.dep").read_text().splitlines(keepends=True)
    (tree / "modules.dep").write_text("".join(line for line in lines if line.partition(":")[0] in files))
    (tree / "build").symlink_to("/usr/src")
    addons = folder / "addons.squashfs"
    _run(_PACK, str(tree), str(addons))
    return folder / "early.cpio", addons


def _run(code: str, *words: str) -> str:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=ZONE, check=True, stdout=subprocess.PIPE, text=True).stdout
