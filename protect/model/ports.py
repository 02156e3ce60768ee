"""Ports of protectd's logic, beside the toolstack and the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from daemonkit.shares import Holding
from protect.model.copied_files import FileChunk, FileTree, FileVolume, FoundFiles, WantedFiles
from protect.model.process import AgentHello, ProcessExited
from protect.model.toolstack import DiskSpec
from protect.model.volume import Volume, VolumeSource
from protect.model.zone import GuestNetwork, ZoneIdMapping


class Sink(Protocol):
    """Receives one output stream, in order, each byte once within this process."""

    async def write(self, data: bytes) -> int:
        """Take the bytes; returns the absolute offset up to which the stream is consumed for good.

        After a restart of this process, bytes behind the offset come again.  A slow sink delays only its own
        stream.  An exception gives the stream up: BrokenPipeError if the reader has gone; others are logged.
        """
        ...

    async def finish(self) -> None:
        """Take the end of the stream; on return the whole stream is consumed for good.

        The agent then forgets the stream.  Remember the end: after a restart a finished stream must not be
        registered again.
        """
        ...


class Input(Protocol):
    """A stream to a process's stdin, with back-pressure."""

    async def write(self, data: bytes) -> None: ...

    async def finish(self) -> None: ...


class LinkEvents(Protocol):
    """Reports of the link to an agent, for the link's owner."""

    async def connected(self, hello: AgentHello, new_boot: bool) -> None:
        """After every HELLO, before any stream moves: list the processes, register their outputs.

        Listed outputs without a registration are then dropped for good.  ``new_boot``: another agent than in
        this link's previous connection (true for the first connection).  An error ends this connection, and
        the next connection tries again.
        """
        ...

    def process_exited(self, exited: ProcessExited) -> None:
        """A process ended.  Reports may repeat, or get lost with a connection: list after each connection."""
        ...

    def disconnected(self) -> None:
        """A connection ended, after ``connected`` or shortly before."""
        ...

    def violation(self, cause: str) -> None:
        """The agent broke the rules and is cut off until the next ``open``; reported once."""
        ...


class OutputLog(Protocol):
    """The log of one workload: two sinks with offsets that survive a SIGKILL, and live subscribers."""

    @property
    def stdout(self) -> LogStream: ...

    @property
    def stderr(self) -> LogStream: ...

    def subscribe(self, memory: Holding | None = None) -> Subscription:
        """Subscribe to later output, until the log is closed; ``memory``: the tenant's."""
        ...

    async def reopen(self) -> None: ...

    async def close(self) -> None: ...


class LogStream(Sink, Protocol):
    """One stream of a log."""

    @property
    def consumed(self) -> int:
        """Offset for the first byte after a restart."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the end is recorded; then the stream must not be requested again."""
        ...


class Subscription(Protocol):
    """Yields ("stdout"|"stderr", data) in order of arrival; Exhausted: the reader has fallen behind."""

    def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]: ...

    async def __anext__(self) -> tuple[str, bytes]: ...

    def close(self) -> None: ...


LogFactory = Callable[[str, Path], Awaitable[OutputLog]]
"""(log path or "", journal) to an open log.  Refused: opening a new log takes too long."""


class ZoneVolumes(Protocol):
    """Shows files and directories of the host to zones, as mounts.  The kernel keeps mounts, not the daemon.

    ``open``, ``close``, ``attach`` and ``detach`` finish their step before they raise CancelledError; the
    caller may then undo the step.
    """

    def shared(self, zone_id: str) -> Path:
        """The path of the mount namespace that the zone shares (``DomainSpec.shared``)."""
        ...

    async def open(self, zone_id: str) -> None:
        """Make the zone's mount namespace; after a failure ``close`` cleans up."""
        ...

    async def close(self, zone_id: str) -> None:
        """Remove the zone's namespace and its contents, as far as they exist."""
        ...

    def zones(self) -> list[str]:
        """Zones with any mounts or directories left."""
        ...

    def users(self, zone_id: str) -> list[str]:
        """Workloads with volumes in the zone."""
        ...

    def resume(self, zone_id: str) -> None:
        """After a restart, let volumes with ``follow_host`` follow the host again."""
        ...

    async def take(
        self, zone_id: str, volumes: Sequence[Volume], timeout: float, ids: ZoneIdMapping | None = None
    ) -> list[VolumeSource]:
        """Find volumes on the host; the caller closes them.  The only lasting effect is new directories.

        ``ids``: the zone's user namespace.  A cancelled caller returns at once.

        Missing, Invalid, Refused.  TooLate: a file system does not answer; only volumes of this zone wait.
        """
        ...

    async def attach(self, zone_id: str, workload_id: str, sources: Sequence[VolumeSource]) -> None:
        """Show volumes to the zone, each as ``<workload id>/<volume's name>`` in the shared directory."""
        ...

    async def detach(self, zone_id: str, workload_id: str) -> None:
        """Remove a workload's volumes, as far as they exist."""
        ...


@dataclass(frozen=True, slots=True)
class ScratchCapacity:
    """Bytes promised to zones, bytes written of the promises, and bytes left for another disk."""

    promised_bytes: int
    written_bytes: int
    free_bytes: int


class ScratchDisks(Protocol):
    """The host's side of zones' scratch disks."""

    def admit(self, zone_id: str, size_bytes: int) -> None:
        """Promise a new zone its disk; 0 bytes: no disk.  Exhausted, with the numbers."""
        ...

    def adopt(self, zone_id: str, size_bytes: int) -> None:
        """Take over the promise to an existing zone."""
        ...

    def make(self, zone_id: str) -> DiskSpec | None:
        """Make the disk, full of zeros; None: the zone has no promise.

        Exhausted, Broken: the host's disk is full or fails; ``remove`` then cleans up.
        """
        ...

    def remove(self, zone_id: str) -> None:
        """Remove the disk and the promise, if any.  No domain may use the disk any more."""
        ...

    def zones(self) -> list[str]:
        """Zones with a scratch disk."""
        ...

    def capacity(self) -> ScratchCapacity: ...


class HostFiles(Protocol):
    """Small files of the host, for copies in zones.  Every wait for a file server is bounded."""

    async def find(self, zone_id: str, wanted: Sequence[WantedFiles], timeout: float) -> list[FoundFiles]:
        """Find volumes: for each a tree to copy, or a reason against a copy.  The caller closes the results.

        TooLate.  Refused: earlier searches still wait for an answer.
        """
        ...

    async def read(self, zone_id: str, tree: FileTree, chunks: Sequence[FileChunk]) -> list[bytes]:
        """The contents of chunks.  FilesChanged: the tree changed after the search."""
        ...

    async def give_back(self, zone_id: str, volume: FileVolume, content: bytes, timeout: float) -> None:
        """Replace the content of the volume's file.  Refused: another file is at the path.  TooLate."""
        ...


class Splice(Protocol):
    """Joins a zone's interface to its pod's.  Steps finish before a cancellation, as in ``ZoneVolumes``."""

    async def __call__(
        self, host_interface: str, netns: str, interface: str, *, spoof_check: bool
    ) -> GuestNetwork:
        """Join the host's end of the zone's interface to CNI's interface in the namespace.  Repeatable.

        Returns the settings for the guest's interface.  ``spoof_check``: only frames from and to the pod's
        own addresses pass.
        """
        ...
