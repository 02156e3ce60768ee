"""Kernel of a domain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DomainKernel:
    """Another kernel than the toolstack's own.  Only root may write the files; their content is hostile.

    ``image``: a bzImage or an ELF image.  ``initramfs``: archives with early modules; the kernel unpacks them
    before the zone's own parts.  ``addons``: a squashfs with ``modules/`` and ``firmware/``; the agent finds
    the disk's name in ``XENPOD_ADDONS``.  ``name`` is for people.
    """

    name: str
    image: Path
    initramfs: Path | None = None
    addons: Path | None = None
