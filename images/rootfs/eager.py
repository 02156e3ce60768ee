"""Begins a filesystem while the topmost layer arrives, to decompress the layer only once."""

from __future__ import annotations

from pathlib import Path

from images.image_settings import ImageSettings
from images.rootfs.content import ContentId
from images.rootfs.filewriter import Written
from images.rootfs.squash import Squashfs, Tools


class EagerFilesystem:
    """A filesystem begun by a FileWriter; written: the FileWriter's result, once known."""

    def __init__(self, out: Path, size: int, settings: ImageSettings, tools: Tools) -> None:
        """size: see Squashfs. Raises Refused; call close() in any case."""
        self.out = out
        self.written: Written | None = None
        self.squashfs = Squashfs(out, size, settings, tools)

    def fits(self, content: ContentId) -> bool:
        """Whether a plan begins with exactly the files written here."""
        return self.written is not None and self.written[:2] == (True, content.first)

    def close(self) -> None:
        """Remove the file, unless the filesystem is finished."""
        self.squashfs.close()
