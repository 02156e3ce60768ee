"""The image part of the daemon, for its event loop: blocking work runs in threads."""

from __future__ import annotations

import asyncio
import platform as machine
from collections.abc import Callable
from typing import TypeVar

from cri.images.kernels.images import KernelImages
from cri.images.pull.progress import Job, Progress
from cri.images.pull.pull import Puller
from cri.images.pull.pulls import Flights
from cri.images.registry.credentials import Credentials
from cri.images.registry.manifests import Platform
from cri.images.registry.names import Reference
from cri.images.registry.sources import registry_sources
from cri.images.settings import ImageSettings
from cri.images.store.catalogue import StoredImage
from cri.images.store.files import Usage
from cri.images.store.store import ImageStore

T = TypeVar("T")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm"}


def this_platform() -> Platform:
    """The platform zones on this host run."""
    return Platform("linux", _MACHINES.get(machine.machine(), machine.machine()))


class ImageManager:
    """Make it, then start() (which sweeps), then serve; stop() at the end."""

    def __init__(self, settings: ImageSettings) -> None:
        self.settings = settings
        self.store = ImageStore(settings)
        self.kernels = KernelImages(self.store, settings.kernels, settings.limits)
        self.puller = Puller(self.store, settings, this_platform())
        self.flights = Flights(settings)

    async def start(self) -> None:
        """Sweeps what a killed run left."""
        await self.run(self.store.open)

    async def stop(self) -> None:
        """Calls all pulls off and waits until nothing of them is left."""
        await self.flights.stop()
        self.store.close()

    @property
    def busy(self) -> bool:
        """Whether anything is being pulled or imported, or cleared away after that."""
        return self.flights.busy

    async def settle(self) -> None:
        """Waits until all pulls have ended, also those that were called off."""
        await self.flights.settle()

    async def pull(
        self,
        reference: Reference,
        credentials: Credentials,
        told: Callable[[Progress], None] = lambda _: None,
    ) -> StoredImage:
        """The image a name stands for at its registry now, ready to run."""
        # Who may not pull an image must not get it by asking at the same time as one who may.
        key = (str(reference), credentials.fingerprint())

        def work(job: Job) -> StoredImage:
            return self.puller.pull(reference, registry_sources(reference, credentials, self.settings), job)

        return await self.flights.shared(key, str(reference), work, told)

    async def remove(self, name_or_id: str) -> None:
        """Removes an image with all its names."""
        await self.run(lambda: self.store.remove(name_or_id))

    async def usage(self) -> Usage:
        """What the store takes on the disk."""
        return await self.run(self.store.files.usage)

    async def run(self, work: Callable[[], T]) -> T:
        """Short blocking work in a thread."""
        return await asyncio.get_running_loop().run_in_executor(None, work)
