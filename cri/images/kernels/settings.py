"""What an operator can set for kernels of zones (``[kernels]`` in cri.toml)."""

from __future__ import annotations

from dataclasses import dataclass

from cri.images.policy.globs import Globs
from daemonkit.config import Bytes

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """``allow``: names of images that pods may choose by annotation; none by default, since the host's domain
    builder reads a kernel before any zone runs.  What a handler names needs no leave.

    The sizes bound each file that is taken out of a kernel image, in bytes.
    """

    allow: tuple[str, ...] = ()
    image_bytes: Bytes = Bytes(128 * _MIB)
    addons_bytes: Bytes = Bytes(1024 * _MIB)
    initramfs_bytes: Bytes = Bytes(64 * _MIB)

    def __post_init__(self) -> None:
        Globs(self.allow)
        if min(self.image_bytes, self.addons_bytes, self.initramfs_bytes) < 1:
            raise ValueError("want sizes of at least 1 byte")
