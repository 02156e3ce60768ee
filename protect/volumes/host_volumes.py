"""The volumes of all zones, on this host."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Broken, Exhausted, Refused, TooLate
from daemonkit.host.host_calls import HostCalls
from daemonkit.host.lookup import Lookups, TenantOf
from daemonkit.logs import fields
from daemonkit.tasks import complete
from protect.host.idmap import user_namespace
from protect.model.volume import Volume, VolumeSource, close_all
from protect.model.zone import ZoneIdMapping
from protect.volumes.area import Area
from protect.volumes.following import Following
from protect.volumes.source import OPERATION, take_mounts

log = logging.getLogger(__name__)

_MOUNT_SECONDS = 30.0
"""Limit for mounts and unmounts; they usually take milliseconds."""
_PAUSE_SECONDS = 0.05
"""Least seconds between two looks at the host's mounts; a host that mounts more often is sampled."""


class HostVolumes:
    """``protect.model.ports.ZoneVolumes``; the areas are ``<root>/<zone>``.

    ``program``: ``hostc/lookup``; ``tenant_of``: the tenant of a zone, see Lookups.
    """

    def __init__(self, root: Path, program: Path, tenant_of: TenantOf = str) -> None:
        self._root = root
        self._lookups = Lookups(program, tenant_of)
        self._calls = HostCalls(_MOUNT_SECONDS)
        self._followers: dict[str, asyncio.Task[None]] = {}

    def shared(self, zone_id: str) -> Path:
        return self._area(zone_id).namespace

    async def open(self, zone_id: str) -> None:
        with _faults("make volumes of zone", zone_id):
            await self._run(zone_id, self._area(zone_id).make)
        checkpoint("volumes.area-made")

    async def close(self, zone_id: str) -> None:
        follower = self._followers.pop(zone_id, None)
        if follower is not None:
            follower.cancel()
            await asyncio.wait([follower])
        with _faults("remove volumes of zone", zone_id):
            await self._run(zone_id, self._area(zone_id).remove)
        checkpoint("volumes.area-removed")

    def resume(self, zone_id: str) -> None:
        area = self._area(zone_id)
        before = self._followers.get(zone_id)
        if (before is None or before.done()) and area.has_stage():
            self._followers[zone_id] = asyncio.create_task(self._follow(zone_id, area))

    async def _follow(self, zone_id: str, area: Area) -> None:
        """Follow until cancelled.  The area may be removed before; calls on it then fail."""
        key = f"{zone_id}: follow"
        following: list[Following] = []
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        # The event loop waits for readability, but a list of mounts is always readable.
        with select.epoll() as changes:
            try:
                await self._run(key, lambda: following.append(Following(area)))
                changes.register(following[0].changes, select.EPOLLPRI)
                loop.add_reader(changes.fileno(), _heard, changes, changed)
                while True:
                    changed.clear()
                    try:
                        await self._run(key, following[0].sync)
                    except OSError as error:
                        log.warning("volumes do not follow the host: %s", error, extra=fields(zone=zone_id))
                    await asyncio.sleep(_PAUSE_SECONDS)
                    await changed.wait()
            except OSError as error:
                log.error("volumes do not follow the host: %s", error, extra=fields(zone=zone_id))
            finally:
                loop.remove_reader(changes.fileno())
                for each in following:
                    each.close()

    def zones(self) -> list[str]:
        return os.listdir(self._root) if self._root.is_dir() else []

    def users(self, zone_id: str) -> list[str]:
        places = self._area(zone_id).places
        return os.listdir(places) if places.is_dir() else []

    async def take(
        self, zone_id: str, volumes: Sequence[Volume], timeout: float, ids: ZoneIdMapping | None = None
    ) -> list[VolumeSource]:
        if not volumes:
            return []
        taken: list[VolumeSource] = []
        try:
            async with asyncio.timeout(timeout):
                await self._take_all(zone_id, volumes, ids, taken)
        except BaseException as error:
            waited = self._lookups.stuck(zone_id)
            close_all(taken)
            if isinstance(error, TimeoutError):
                paths = ", ".join(volume.host_path for volume in volumes)
                cause = f"the host did not find them within {timeout:g} s"
                hint = "earlier look-ups of the zone have not come back" if waited else ""
                raise TooLate(OPERATION, f"{paths:.400}", cause, hint) from None
            raise
        return taken

    async def _take_all(
        self,
        zone_id: str,
        volumes: Sequence[Volume],
        ids: ZoneIdMapping | None,
        taken: list[VolumeSource],
    ) -> None:
        async with self._lookups.begin(zone_id) as lookup:
            with ExitStack() as stack:
                users = await complete(asyncio.to_thread(_users, volumes, ids, stack))
                for volume in volumes:
                    await take_mounts(volume, lookup, users, taken)

    async def attach(self, zone_id: str, workload_id: str, sources: Sequence[VolumeSource]) -> None:
        if sources:
            with _faults("attach volumes of", workload_id):
                attach = functools.partial(_attach, self._area(zone_id), workload_id, tuple(sources))
                await self._run(f"{zone_id}/{workload_id}", attach, f"{zone_id}/")
            self.resume(zone_id)

    async def detach(self, zone_id: str, workload_id: str) -> None:
        with _faults("detach volumes of", workload_id):
            detach = functools.partial(self._area(zone_id).detach, workload_id)
            await self._run(f"{zone_id}/{workload_id}", detach, f"{zone_id}/")
        checkpoint("volumes.detached")

    async def _run(self, key: str, work: Callable[[], None], owner: str = "") -> None:
        """Run in threads outside the shared pool: the last unmount of a file system may wait for its server.

        ``owner``: its calls under way are limited; calls that end a zone have no owner, and are not limited.
        """
        await complete(self._calls.run(key, work, owner=owner))

    def _area(self, zone_id: str) -> Area:
        return Area(self._root / zone_id)


def _heard(changes: select.epoll, changed: asyncio.Event) -> None:
    changes.poll(0)
    changed.set()


def _users(volumes: Sequence[Volume], ids: ZoneIdMapping | None, stack: ExitStack) -> int:
    """A descriptor of the user namespace for id-mapped volumes, open as long as the stack; 0: not needed."""
    mapped = [volume.host_path for volume in volumes if volume.map_ids]
    if not mapped:
        return 0
    if ids is None:
        raise Refused(OPERATION, mapped[0], "its ids are to be mapped, and its zone has no user namespace")
    with _faults("make user namespace for", mapped[0]):
        return stack.enter_context(user_namespace(ids))


def _attach(area: Area, workload_id: str, sources: tuple[VolumeSource, ...]) -> None:
    for source in sources:
        name, directory = source.volume.name, source.directory
        area.attach(workload_id, name, source.tree, directory=directory, stage=source.stage)
        checkpoint("volumes.attached")


@contextmanager
def _faults(operation: str, subject: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            hint = "see sysctl fs.mount-max"
            raise Exhausted(operation, subject, "the host has no space for more mounts", hint) from error
        raise Broken(operation, subject, str(error)) from error
