"""Assembles the ImageService of a daemon with a delegate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import grpc

from cri.delegate.config import DelegateConfig
from cri.delegate.images.missing import MissingImages
from cri.delegate.images.pull_memory import PullMemory
from cri.delegate.images.service import IsOurs, MixedImages
from cri.delegate.images.theirs import DelegateImages
from cri.delegate.link import Delegate
from cri.delegate.owners import Ensure, Owner
from images.manager import ImageManager
from images.rpc.service import ImageService


@asynccontextmanager
async def mixed_images(
    config: DelegateConfig,
    delegate: Delegate,
    manager: ImageManager,
    handlers: Collection[str],
    is_ours: IsOurs,
) -> AsyncIterator[tuple[grpc.GenericRpcHandler[Any, Any], Ensure]]:
    """The ImageService to add to a server, and the hook to await before each container is created.

    Both may be used while the block runs.
    """
    theirs, memory = DelegateImages(delegate, config.keep), PullMemory()
    manager.on_named = lambda reference: memory.moved(reference, Owner.OURS)
    missing = MissingImages(manager, theirs, memory)
    try:
        service = MixedImages(config, handlers, ImageService(manager), theirs, memory, is_ours)
        yield service.service(), missing.ensure
    finally:
        await missing.stop()
