"""Settings of the Xen toolstack (``[libxl]`` in protectd.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from daemonkit.config import Bytes, Seconds, absolute, at_least, at_most
from daemonkit.convert import WrongKey
from protect.model.domain.shares import DOM0_WEIGHT

_SHARE_LEAST = 16 << 20
_MOST_WEIGHT = 65_535
_ARGUMENTS = 512  # a zone's own words must fit beside them, see ``boot.command_line``


@dataclass(frozen=True, slots=True)
class LibxlSettings:
    """``kernel``: what zones boot (bzImage or ELF); by default the newest of /boot that the guest
    directory has an initramfs for."""

    NOT_YET: ClassVar[Mapping[str, str]] = {
        "device_model": "volumes need no QEMU any more: leave it out",
    }

    kernel: Path | None = None
    initramfs: Path | None = None
    """By default ``<guest_dir>/initramfs-<version of the kernel>.cpio``."""
    kernel_arguments: str = "quiet"
    """Added to every zone's kernel command line."""
    console_dir: Path = Path("/var/log/xen/console")
    """Where xenconsoled, run with ``--log=guest``, keeps the consoles of guests."""
    share_memory: Bytes = Bytes(256 << 20)
    """What a zone's file server may use, with the host's cache of the files."""
    dom0_weight: int = DOM0_WEIGHT
    """What dom0 weighs at least; 0: as it does."""
    threads: int = 8
    """Most calls to libxl under way at once."""
    disk_patience: Seconds = Seconds(10.0)
    """Seconds that a guest has to release a disk."""
    stale_channel: Seconds = Seconds(2.0)
    """Seconds to wait for an agent to give up a connection that nobody has any more."""

    def __post_init__(self) -> None:
        absolute(self, "kernel", "initramfs", "console_dir")
        at_least(1, self, "threads")
        at_least(0, self, "dom0_weight")
        at_most(_MOST_WEIGHT, self, "dom0_weight")
        at_least(_SHARE_LEAST, self, "share_memory")
        if not self.kernel_arguments.isprintable() or len(self.kernel_arguments) > _ARGUMENTS:
            raise WrongKey("kernel_arguments", f"it is not a line of at most {_ARGUMENTS} characters")
