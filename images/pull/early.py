"""Begins to build filesystems while their topmost layers are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from daemonkit.faults import Fault
from daemonkit.shares import Shares
from images.concurrency import tenant
from images.rootfs.begun import BegunFilesystem
from images.rootfs.squash import Tools
from images.rootfs.stack import MAX_PARTS
from images.settings import ImageSettings
from images.store.files import StoreFiles

# How many one tenant has at once: those of one image. Each is a tar2sqfs, of 9 MiB and more with many files,
# which may have to wait for lower layers. What finds no slot is inflated once more when all its layers are
# here.
SLOTS = MAX_PARTS


class EarlyBuild:
    """A place for one filesystem that is begun early, or not at all; used by one thread at a time."""

    def __init__(
        self,
        files: StoreFiles,
        chain_id: str,
        size: int,
        settings: ImageSettings,
        slots: Shares,
        tools: Tools,
    ) -> None:
        """size: of the topmost layer, compressed."""
        self._files = files
        self._stem = chain_id.partition(":")[2]
        self._size = size
        self._settings = settings
        self._slots = slots
        self._tenant = tenant()
        self._tools = tools
        self._undo = ExitStack()
        self.begun: BegunFilesystem | None = None

    @contextmanager
    def reading(self) -> Iterator[BegunFilesystem | None]:
        """What is to be given the topmost layer's files, as they come; None: it is not begun now."""
        # Another host may have sent a part of it.
        self.close()
        begun = self._begin()
        yield begun
        self.begun = begun

    def close(self) -> None:
        """Remove what is unfinished."""
        self.begun = None
        self._undo.close()

    def _begin(self) -> BegunFilesystem | None:
        if not self._slots.take(self._tenant):
            return None
        self._undo.callback(self._slots.give, self._tenant)
        out = self._undo.enter_context(self._files.work_file(self._stem))
        try:
            begun = BegunFilesystem(out, self._size, self._settings, self._tools)
            return self._undo.enter_context(closing(begun))
        except (OSError, Fault):
            # It will be told when the filesystem is built.
            self._undo.close()
            return None
