"""An image manager that runs for the length of a block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from images.image_settings import ImageSettings
from images.manager import ImageManager


@asynccontextmanager
async def running(settings: ImageSettings) -> AsyncIterator[ImageManager]:
    manager = ImageManager(settings)
    await manager.start()
    try:
        yield manager
    finally:
        await manager.stop()
