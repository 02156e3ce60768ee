"""Begins to build filesystems while their topmost layers are fetched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from cri.images.concurrency import CancelToken
from cri.images.layer.layers import EntryReader
from cri.images.rootfs.begun import BegunFilesystem
from cri.images.settings import ImageSettings
from cri.images.store.files import StoreFiles
from daemonkit.faults import Fault

# How many there are at once. Each is a tar2sqfs, of 9 MiB and more with many files, which may have to wait
# for lower layers. What finds no slot is built when all its layers are here.
SLOTS = 6


class EarlyBuild:
    """A place for one filesystem that is begun early, or not at all; used by one thread at a time."""

    def __init__(
        self, files: StoreFiles, chain_id: str, settings: ImageSettings, slots: threading.Semaphore
    ) -> None:
        self._files = files
        self._stem = chain_id.partition(":")[2]
        self._settings = settings
        self._slots = slots
        self._undo = ExitStack()
        self.begun: BegunFilesystem | None = None

    @contextmanager
    def reading(self, diff_id: str, token: CancelToken) -> Iterator[EntryReader | None]:
        """The reader for the topmost layer's entries as they come; None: the build is not begun early."""
        # Another host may have sent a part of it.
        self.close()
        begun = self._begin(diff_id)
        if begun is None:
            yield None
            return
        with token.unblocking(begun.squashfs.kill):
            yield begun.take
        self.begun = begun

    def close(self) -> None:
        """Remove what is unfinished."""
        self.begun = None
        self._undo.close()

    def _begin(self, diff_id: str) -> BegunFilesystem | None:
        if not self._slots.acquire(blocking=False):
            return None
        self._undo.callback(self._slots.release)
        out = self._undo.enter_context(self._files.work_file(self._stem))
        try:
            return self._undo.enter_context(closing(BegunFilesystem(out, diff_id, self._settings)))
        except (OSError, Fault):
            # It will be told when the filesystem is built.
            self._undo.close()
            return None
