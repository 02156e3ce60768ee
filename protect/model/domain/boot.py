"""What a domain boots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DomainKernel:
    """Another kernel than the toolstack's own, in files that root alone may write; they are hostile.

    ``image``: a bzImage or an ELF image; ``initramfs``: archives for the kernel to unpack before the zone's
    own parts, with modules that are needed early; ``addons``: a squashfs with ``modules/`` and ``firmware/``,
    which the agent learns of from ``XENPOD_ADDONS``, the name of its disk.  ``name`` is for people.
    """

    name: str
    image: Path
    initramfs: Path | None = None
    addons: Path | None = None
