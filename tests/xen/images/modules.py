"""Kernel modules by name, with their dependencies."""

from __future__ import annotations

import lzma
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path


def files(version: str, names: Iterable[str]) -> list[Path]:
    """The modules' files in loading order, each once."""
    found: dict[Path, None] = {}
    for name in names:
        command = ["modprobe", "-S", version, "--show-depends", "--ignore-install", name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.update(dict.fromkeys(Path(path) for path in re.findall(r"^insmod (\S+)", output, re.M)))
    return list(found)


def copy(source: Path, target: Path) -> None:
    """Copy a module, unpacked: some insmod programs cannot unpack."""
    data = source.read_bytes()
    target.write_bytes(lzma.decompress(data) if source.suffix == ".xz" else data)
