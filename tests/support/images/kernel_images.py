"""Kernel images: their layers with any files in /kernel."""

from __future__ import annotations

import gzip
import platform
from collections.abc import Mapping

from images.worker.kernel.kconfig import NEEDED
from tests.support.images.images import BuiltImage, Layer, build

METADATA = (
    f"KERNEL_ARCH={platform.machine()}\nKERNEL_VERSION=6.12.4\nKERNEL_FLAVOR=zone\nKERNEL_CONFIG=sha256:00\n"
)


def config(**values: str) -> bytes:
    """A config.gz of a fitting kernel, with these changes; "" removes an option."""
    options = dict.fromkeys(NEEDED, "y") | values
    text = "".join(f"CONFIG_{name}={value}\n" for name, value in options.items() if value)
    return gzip.compress(f"# Linux\n{text}# CONFIG_OTHER is not set\n".encode(), mtime=0)


def kernel_files(**changes: bytes | None) -> dict[str, bytes]:
    """Of a proper kernel image; names with _ for ., None takes one out."""
    files: dict[str, bytes | None] = {
        "image": b"the kernel " * 5000,
        "addons.squashfs": b"hsqs" * 3000,
        "config.gz": config(),
        "metadata": METADATA.encode(),
    }
    files |= {name.replace("_", "."): data for name, data in changes.items()}
    return {name: data for name, data in files.items() if data is not None}


def layer(files: Mapping[str, bytes]) -> Layer:
    """An unfinished layer with these files in /kernel."""
    made = Layer().dir("kernel")
    for name, data in files.items():
        made.file(f"kernel/{name}", data)
    return made


def kernel_image(**changes: bytes | None) -> BuiltImage:
    """See kernel_files."""
    return build([layer(kernel_files(**changes)).tar()])
