"""Begins to build filesystems while their topmost layers are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from daemonkit.faults import Fault
from daemonkit.shares import Shares
from images.concurrency import tenant
from images.image_settings import ImageSettings
from images.rootfs.eager import EagerFilesystem
from images.rootfs.squash import Tools
from images.rootfs.stack import MAX_PARTS
from images.store.image_files import StoreFiles

# Limit of early builds for each tenant: enough for one image. Each build is a tar2sqfs process of at least 9
# MiB, and may have to wait for lower layers. Without a slot, the layer is decompressed again after all layers
# are stored.
SLOTS = MAX_PARTS


class EagerBuild:
    """At most one early build of a filesystem; used by one thread at a time."""

    def __init__(
        self,
        files: StoreFiles,
        chain_id: str,
        size: int,
        settings: ImageSettings,
        slots: Shares,
        tools: Tools,
    ) -> None:
        """size: compressed size of the topmost layer, in bytes."""
        self._files = files
        self._stem = chain_id.partition(":")[2]
        self._size = size
        self._settings = settings
        self._slots = slots
        self._tenant = tenant()
        self._tools = tools
        self._undo = ExitStack()
        self.begun: EagerFilesystem | None = None

    @contextmanager
    def reading(self) -> Iterator[EagerFilesystem | None]:
        """Yields a consumer for the topmost layer's files as they arrive, or None if no build begins."""
        # An earlier host may have sent part of the layer.
        self.close()
        begun = self._begin()
        yield begun
        self.begun = begun

    def close(self) -> None:
        """Remove the unfinished build."""
        self.begun = None
        self._undo.close()

    def _begin(self) -> EagerFilesystem | None:
        if not self._slots.take(self._tenant):
            return None
        self._undo.callback(self._slots.give, self._tenant)
        out = self._undo.enter_context(self._files.work_file(self._stem))
        try:
            begun = EagerFilesystem(out, self._size, self._settings, self._tools)
            return self._undo.enter_context(closing(begun))
        except (OSError, Fault):
            # The later full build reports the error.
            self._undo.close()
            return None
