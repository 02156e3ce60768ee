"""Copies of the host's small files in a zone: find, put, keep current, write back (ADR 33)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from daemonkit.checkpoints import checkpoint
from daemonkit.faults import Fault, Refused
from daemonkit.logs import fields
from protect.config import Timeouts
from protect.model.container import CopiedVolume, WorkloadSpec
from protect.model.copied_files import FilesChanged, FileVolume, FoundFiles, WantedFiles
from protect.model.ports import HostFiles
from protect.model.volume import Volume
from protect.state.runtime import WorkloadRuntime, ZoneRuntime
from protect.state.zone_files import FileCopy, Key, key_of
from protect.workloads import put_files
from protect.workloads.renew_files import FileRenewal

log = logging.getLogger(__name__)

MOST_COPIES = 256
"""Most copies of one zone."""
_SHARE = 16
_MOST_BYTES = 16 << 20
"""Most bytes for copies; also at most a sixteenth of the zone's memory."""


@dataclass(slots=True)
class TakenFiles:
    """A new workload's file volumes: files to copy, as found, and files to share instead."""

    copies: list[tuple[FileVolume, FoundFiles]] = field(default_factory=list)
    shared: list[Volume] = field(default_factory=list)

    @property
    def volumes(self) -> tuple[FileVolume, ...]:
        """Volumes for the record."""
        return tuple(volume for volume, _ in self.copies)

    def copied(self, workload_id: str) -> list[CopiedVolume]:
        """Volumes for the agent."""
        keys = [(volume.name, key_of(workload_id, volume)) for volume in self.volumes]
        return [CopiedVolume(name, owner, volume) for name, (owner, volume) in keys]

    def close(self) -> None:
        """Close trees, and watches without a new owner."""
        for _, found in self.copies:
            found.close()
            if found.watch is not None:
                found.watch.close()


@dataclass(frozen=True, slots=True)
class FileCopies:
    """Finds, puts and writes back the copies of the host's files."""

    files: HostFiles
    renewal: FileRenewal
    timeouts: Timeouts

    async def take(self, zone: ZoneRuntime, spec: WorkloadSpec) -> TakenFiles:
        """Find the volumes on the host, and choose volumes to copy.  No lasting effect."""
        taken = TakenFiles()
        if not spec.file_volumes:
            return taken
        if not zone.zone.file_volumes:
            hint = "leave out file_volumes, where the zone does not say that it takes them"
            raise Refused(
                "create workload", spec.id, f"the agent of zone {zone.id} knows no file volumes", hint
            )
        wanted = [self._wanted(zone, spec.id, volume) for volume in spec.file_volumes]
        for volume, found in zip(
            spec.file_volumes,
            await self.files.find(zone.id, wanted, self.timeouts.call),
            strict=True,
        ):
            if reason := found.reason or _not_here(zone, taken, key_of(spec.id, volume), volume, found):
                found.close()
                log.info(
                    "shared, not copied: %s", reason, extra=fields(workload=spec.id, path=volume.host_path)
                )
                taken.shared.append(_as_shared(volume))
            else:
                assert found.tree is not None
                taken.copies.append((replace(volume, file=found.tree.file), found))
        return taken

    def _wanted(self, zone: ZoneRuntime, workload_id: str, volume: FileVolume) -> WantedFiles:
        key = key_of(workload_id, volume)
        known = zone.files.copies.get(key)
        if not volume.keep_current or (known and known.watched):
            return WantedFiles(volume)
        return WantedFiles(volume, functools.partial(self.renewal.changed, zone, key))

    async def put(self, runtime: WorkloadRuntime, taken: TakenFiles) -> None:
        """Bring the zone's copies up to date with the host.  The workload's record names the copies."""
        files = runtime.zone.files
        files.hold(runtime.id, taken.volumes)
        for volume, found in taken.copies:
            copy = files.copies[key_of(runtime.id, volume)]
            if found.watch is not None:
                copy.watch_by(found.watch, found.file)
                found.watch = None
            await self._put(runtime.zone, copy, found)
            if copy.key in files.changed:
                self.renewal.changed(runtime.zone, copy.key)
        checkpoint("workload-create.files-put")

    async def _put(self, zone: ZoneRuntime, copy: FileCopy, found: FoundFiles) -> None:
        async with zone.files.lock:
            assert found.tree is not None
            if copy.version in ("", found.tree.version):
                with suppress(FilesChanged):
                    await put_files.put_version(self.files, zone, copy, found.tree)
                    return
            # The found tree may be older than the zone's copy.
            await self.renewal.renew(zone, copy)

    def adopt(self, runtime: WorkloadRuntime) -> None:
        """After a restart, restore watches and copies in the background.  Idempotent."""
        volumes: Sequence[FileVolume] = runtime.workload.files
        runtime.zone.files.hold(runtime.id, volumes)
        for volume in volumes:
            if volume.keep_current:
                self.renewal.changed(runtime.zone, key_of(runtime.id, volume))

    async def give_back(self, runtime: WorkloadRuntime) -> None:
        """Write back the returned files of an ended workload.  The host may read the files at once."""
        timeout = self.timeouts.call
        for volume in runtime.workload.files:
            # A record of commit bef7f32f may return bytes to a volume that is read-only.
            if not volume.is_returned or not runtime.zone.running:
                continue
            owner, name = key_of(runtime.id, volume)
            try:
                untrusted = await runtime.zone.agent.read_file(owner, name, volume.return_bytes)
                if untrusted:
                    await self.files.give_back(runtime.zone.id, volume, untrusted, timeout)
            except Fault as fault:
                log.warning(
                    "not written back: %s", fault, extra=fields(workload=runtime.id, path=volume.host_path)
                )
        checkpoint("workload-exit.files-returned")


def _not_here(zone: ZoneRuntime, taken: TakenFiles, key: Key, volume: FileVolume, found: FoundFiles) -> str:
    """Why the zone cannot have a copy; "" if the zone can."""
    known = zone.files.copies.get(key)
    if known and known.volume.host_path != volume.host_path:
        return f"the zone has a volume {key[1]!r} of another path"
    if len(zone.files.copies) + len(taken.copies) >= MOST_COPIES:
        return f"the zone has {MOST_COPIES} copies"
    size = found.tree.size_bytes if found.tree else 0
    coming = sum(each.tree.size_bytes for _, each in taken.copies if each.tree)
    most = min(_MOST_BYTES, zone.zone.spec.memory_bytes // _SHARE)
    if zone.files.size_bytes(key) + coming + size > most:
        return f"the zone's copies would take more than {most} bytes"
    return ""


def _as_shared(volume: FileVolume) -> Volume:
    return Volume(
        name=volume.name,
        host_path=volume.host_path,
        readonly=not volume.writable,
        create_directory=True,
        map_ids=volume.map_ids,
    )
