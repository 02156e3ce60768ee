"""The volumes of all zones, on this host."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Broken, Exhausted, Refused, TooLate
from daemonkit.tasks import complete, join
from protect.host.idmap import user_namespace
from protect.model.volume import Volume, VolumeSource, close_all
from protect.model.zone import ZoneIdMapping
from protect.volumes.area import Area
from protect.volumes.source import OPERATION, take

_RESOLVERS = 16
"""Paths on file servers that do not answer keep a thread each, until they do."""


class HostVolumes:
    """``protect.model.ports.ZoneVolumes``; the areas are ``<root>/<zone>``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._resolvers = ThreadPoolExecutor(_RESOLVERS, "volume")

    def shared(self, zone_id: str) -> Path:
        return self._area(zone_id).namespace

    async def open(self, zone_id: str) -> None:
        with _faults("make volumes of zone", zone_id):
            await complete(asyncio.to_thread(self._area(zone_id).make))
        checkpoint("volumes.area-made")

    async def close(self, zone_id: str) -> None:
        with _faults("remove volumes of zone", zone_id):
            await complete(asyncio.to_thread(self._area(zone_id).remove))
        checkpoint("volumes.area-removed")

    def zones(self) -> list[str]:
        return os.listdir(self._root) if self._root.is_dir() else []

    async def take(
        self, volumes: Sequence[Volume], timeout: float, ids: ZoneIdMapping | None = None
    ) -> list[VolumeSource]:
        if not volumes:
            return []
        taking = self._resolvers.submit(_take_all, tuple(volumes), ids)
        try:
            async with asyncio.timeout(timeout):
                return await join(asyncio.wrap_future(taking))
        except BaseException as error:
            # The caller is freed at once.  The thread goes on; what it still takes is closed.
            if not taking.cancel():
                taking.add_done_callback(_close_late)
            if isinstance(error, TimeoutError):
                paths = ", ".join(volume.host_path for volume in volumes)
                cause = f"the host did not find them within {timeout:g} s"
                raise TooLate(OPERATION, f"{paths:.400}", cause) from None
            raise

    async def attach(self, zone_id: str, workload_id: str, sources: Sequence[VolumeSource]) -> None:
        if sources:
            with _faults("attach volumes of", workload_id):
                attaching = asyncio.to_thread(_attach, self._area(zone_id), workload_id, tuple(sources))
                await complete(attaching)

    async def detach(self, zone_id: str, workload_id: str) -> None:
        with _faults("detach volumes of", workload_id):
            await complete(asyncio.to_thread(self._area(zone_id).detach, workload_id))
        checkpoint("volumes.detached")

    def _area(self, zone_id: str) -> Area:
        return Area(self._root / zone_id)


def _take_all(volumes: tuple[Volume, ...], ids: ZoneIdMapping | None) -> list[VolumeSource]:
    taken: list[VolumeSource] = []
    try:
        with _users(volumes, ids) as users:
            for volume in volumes:
                taken.append(take(volume, users))  # noqa: PERF401 - closed when the next one fails
    except BaseException:
        close_all(taken)
        raise
    return taken


@contextmanager
def _users(volumes: tuple[Volume, ...], ids: ZoneIdMapping | None) -> Iterator[int]:
    """A descriptor of the user namespace that some of them need; 0 when none does."""
    mapped = [volume.host_path for volume in volumes if volume.map_ids]
    if not mapped:
        yield 0
    elif ids is None:
        raise Refused(OPERATION, mapped[0], "its ids are to be mapped, and its zone has no user namespace")
    else:
        with ExitStack() as stack:
            with _faults("make user namespace for", mapped[0]):
                users = stack.enter_context(user_namespace(ids))
            yield users


def _attach(area: Area, workload_id: str, sources: tuple[VolumeSource, ...]) -> None:
    for source in sources:
        area.attach(workload_id, source.volume.name, source.tree, directory=source.directory)
        checkpoint("volumes.attached")


def _close_late(taking: Future[list[VolumeSource]]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        close_all(taking.result())


@contextmanager
def _faults(operation: str, subject: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            hint = "see sysctl fs.mount-max"
            raise Exhausted(operation, subject, "the host has no space for more mounts", hint) from error
        raise Broken(operation, subject, str(error)) from error
