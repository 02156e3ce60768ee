"""Builds dom0's initramfs: busybox with its libraries, the modules that reach the host's root, init."""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
from pathlib import Path

from tests.xen.parts import Parts

HERE = Path(__file__).parent
EARLY_MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")


def build(parts: Parts, folder: Path) -> Path:
    """Write ``folder/dom0.cpio`` (about 10 MB, uncompressed: nothing to decompress in emulation)."""
    root = folder / "dom0-root"
    for name in ("bin", "modules", "proc", "sys", "dev", "host", "cow", "newroot"):
        (root / name).mkdir(parents=True, exist_ok=True)
    _add_busybox(parts.busybox, root)
    for number, module in enumerate(_module_files(parts.kernel_version)):
        _add_module(module, root / "modules" / f"{number:02}-{module.name.removesuffix('.xz')}")
    shutil.copy(HERE / "dom0" / "init", root / "init")
    (root / "init").chmod(0o755)
    image = folder / "dom0.cpio"
    names = subprocess.run(["find", "."], cwd=root, check=True, stdout=subprocess.PIPE).stdout
    with image.open("wb") as out:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, check=True, input=names, stdout=out)
    shutil.rmtree(root)
    return image


def _add_busybox(busybox: Path, root: Path) -> None:
    """Copy busybox and, where it is a dynamic one, its libraries."""
    shutil.copy(busybox, root / "bin" / "busybox")
    (root / "bin" / "sh").symlink_to("busybox")
    listed = subprocess.run(["ldd", str(busybox)], capture_output=True, text=True, check=False)
    for library in re.findall(r"(/\S+) \(0x", listed.stdout):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)


def _module_files(version: str) -> list[Path]:
    """The early modules and what they depend on, in loading order, each once."""
    files: dict[Path, None] = {}
    for name in EARLY_MODULES:
        command = ["modprobe", "-S", version, "--show-depends", "--ignore-install", name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        files.update(dict.fromkeys(Path(path) for path in re.findall(r"^insmod (\S+)", output, re.M)))
    return list(files)


def _add_module(source: Path, target: Path) -> None:
    data = source.read_bytes()
    target.write_bytes(lzma.decompress(data) if source.suffix == ".xz" else data)
