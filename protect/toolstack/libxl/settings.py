"""Settings of the Xen toolstack (``[libxl]`` in protectd.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from daemonkit.config import Bytes, Seconds, absolute, at_least, at_most
from daemonkit.convert import WrongKey
from protect.model.domain.shares import DOM0_WEIGHT

_SHARE_LEAST_BYTES = 16 << 20
_MOST_WEIGHT = 65_535
_ARGUMENTS = 512  # a zone's own words must fit beside these, see ``boot.command_line``


@dataclass(frozen=True, slots=True)
class LibxlSettings:
    """``kernel``: the kernel of zones (bzImage or ELF); by default the newest of /boot with an initramfs in
    the guest directory.
    """

    NOT_YET: ClassVar[Mapping[str, str]] = {
        "device_model": "volumes need no QEMU any more: leave it out",
    }

    kernel: Path | None = None
    initramfs: Path | None = None
    """By default ``<guest_dir>/initramfs-<version of the kernel>.cpio``."""
    kernel_arguments: str = "quiet"
    """Added to every zone's kernel command line."""
    console_dir: Path = Path("/var/log/xen/console")
    """Directory of the guests' consoles; xenconsoled, run with ``--log=guest``, writes them."""
    share_memory: Bytes = Bytes(256 << 20)
    """Memory limit of a zone's file server, including the host's cache of the files."""
    dom0_weight: int = DOM0_WEIGHT
    """Least weight of dom0; 0: unchanged."""
    threads: int = 8
    """Most calls to libxl under way at once."""
    disk_patience: Seconds = Seconds(10.0)
    """Seconds that a guest has to release a disk."""
    stale_channel: Seconds = Seconds(2.0)
    """Seconds to wait until an agent gives up a dead connection."""

    def __post_init__(self) -> None:
        absolute(self, "kernel", "initramfs", "console_dir")
        at_least(1, self, "threads")
        at_least(0, self, "dom0_weight")
        at_most(_MOST_WEIGHT, self, "dom0_weight")
        at_least(_SHARE_LEAST_BYTES, self, "share_memory")
        if not self.kernel_arguments.isprintable() or len(self.kernel_arguments) > _ARGUMENTS:
            raise WrongKey("kernel_arguments", f"it is not a line of at most {_ARGUMENTS} characters")
