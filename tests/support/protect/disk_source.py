"""A directory of the host on a separate disk, by which a test sees remaining users of the disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

from protect.host import mounts
from tests.support.protect import leftovers
from tests.support.waiting import until


class DiskSource:
    """A small ext4 on a loop device, mounted at ``path``; the device goes with the last mount."""

    def __init__(self, folder: Path) -> None:
        self._image = folder / "disk.ext4"
        self._folder = folder
        self.path = folder / "disk"

    def __enter__(self) -> DiskSource:
        with self._image.open("wb") as file:
            file.truncate(4 << 20)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self.path.mkdir()
        _run("mount", "-o", "loop", str(self._image), str(self.path))
        return self

    async def freed(self) -> None:
        """Unmount the disk; then nobody uses the disk."""
        while mounts.unmount(self.path):
            pass
        try:
            await until(lambda: not self._held())
        except TimeoutError:
            raise AssertionError("somebody still has the disk mounted") from None

    def _held(self) -> bool:
        return any(str(self._image) in loop for loop in leftovers.loops(self._folder))

    def __exit__(self, *exception: object) -> None:
        while mounts.unmount(self.path):
            pass


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
