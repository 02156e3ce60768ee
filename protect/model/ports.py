"""Ports of protectd's logic, beside the toolstack and the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from daemonkit.shares import Holding
from protect.model.files import FileChunk, FileTree, FileVolume, FoundFiles, WantedFiles
from protect.model.process import AgentHello, ProcessExited
from protect.model.toolstack import DiskSpec
from protect.model.volume import Volume, VolumeSource
from protect.model.zone import GuestNetwork, ZoneIdMapping


class Sink(Protocol):
    """Receives one output stream, in order, each byte once within this process."""

    async def write(self, data: bytes) -> int:
        """Take the bytes; the absolute offset up to which the stream is consumed for good.

        What lies after that offset comes again after a restart of this process.  May take as long as
        it needs: only this stream waits.  Raising gives the stream up: BrokenPipeError says that its
        reader has gone, anything else is logged.
        """
        ...

    async def finish(self) -> None:
        """Take the end of the stream; on return all of it is consumed for good.

        The agent forgets the stream then, so remember it: a finished stream must not be registered
        again after a restart.
        """
        ...


class Input(Protocol):
    """A stream to a process's stdin, with back-pressure."""

    async def write(self, data: bytes) -> None: ...

    async def finish(self) -> None: ...


class LinkEvents(Protocol):
    """What the link to an agent reports to its owner."""

    async def connected(self, hello: AgentHello, new_boot: bool) -> None:
        """After every HELLO, before any stream moves: list the processes, register their outputs.

        Listed outputs that are not registered by then are dropped for good.  ``new_boot``: the agent
        is not the one of this link's previous connection (true for the first).  An error ends this
        connection, and the next one tries again.
        """
        ...

    def process_exited(self, exited: ProcessExited) -> None:
        """A process ended; may come twice, and may be lost with a connection (list after each)."""
        ...

    def disconnected(self) -> None:
        """A connection that ``connected`` was told of, or was about to be, has ended."""
        ...

    def violation(self, cause: str) -> None:
        """The agent broke the rules and is cut off until ``open`` is called again; told once."""
        ...


class OutputLog(Protocol):
    """The log of one workload, with two sinks, whose offsets survive a SIGKILL, and live subscribers."""

    @property
    def stdout(self) -> LogStream: ...

    @property
    def stderr(self) -> LogStream: ...

    def subscribe(self, memory: Holding | None = None) -> Subscription:
        """Subscribe to the output from now on, until the log is closed; ``memory``: of the tenant."""
        ...

    async def reopen(self) -> None: ...

    async def close(self) -> None: ...


class LogStream(Sink, Protocol):
    """One stream of a log."""

    @property
    def consumed(self) -> int:
        """The offset at which to resume after a restart."""
        ...

    @property
    def finished(self) -> bool:
        """Whether its end is recorded: it must not be asked for again."""
        ...


class Subscription(Protocol):
    """Yields ("stdout"|"stderr", data) as it comes; Exhausted: the reader has fallen behind."""

    def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]: ...

    async def __anext__(self) -> tuple[str, bytes]: ...

    def close(self) -> None: ...


LogFactory = Callable[[str, Path], Awaitable[OutputLog]]
"""(log path or "", journal) to an open log; Refused when a new one cannot be opened in a limited time."""


class ZoneVolumes(Protocol):
    """Shows files and directories of the host to zones, as mounts: the kernel keeps them, not the daemon.

    ``open``, ``close``, ``attach`` and ``detach`` finish what they begin: when one of them raises
    CancelledError, its step has ended and can be undone.
    """

    def shared(self, zone_id: str) -> Path:
        """The path of the mount namespace that the zone shares (``DomainSpec.shared``)."""
        ...

    async def open(self, zone_id: str) -> None:
        """Make the zone's mount namespace; after a failure ``close`` cleans up."""
        ...

    async def close(self, zone_id: str) -> None:
        """Remove the zone's namespace with everything in it, as far as it exists."""
        ...

    def zones(self) -> list[str]:
        """The zones of which anything is left."""
        ...

    def users(self, zone_id: str) -> list[str]:
        """Workloads that have any."""
        ...

    def resume(self, zone_id: str) -> None:
        """Let a zone's volumes follow the host again, after a restart, as far as they are to."""
        ...

    async def take(
        self, zone_id: str, volumes: Sequence[Volume], timeout: float, ids: ZoneIdMapping | None = None
    ) -> list[VolumeSource]:
        """Find them on the host; the caller closes them.  Nothing that lasts is done (but directories made).

        ``ids``: of the zone's user namespace.  A caller who is cancelled is freed at once.

        Missing, Invalid, Refused; TooLate when a file system does not answer, which holds up the zone's
        own volumes at most.
        """
        ...

    async def attach(self, zone_id: str, workload_id: str, sources: Sequence[VolumeSource]) -> None:
        """Show volumes to the zone, each as ``<workload id>/<volume's name>`` in what it shares."""
        ...

    async def detach(self, zone_id: str, workload_id: str) -> None:
        """Remove a workload's volumes, as far as they exist."""
        ...


@dataclass(frozen=True, slots=True)
class ScratchRoom:
    """Bytes promised to zones, written of that, and left for another disk."""

    promised_bytes: int
    written_bytes: int
    free_bytes: int


class ScratchDisks(Protocol):
    """The host's side of zones' scratch disks."""

    def admit(self, zone_id: str, size_bytes: int) -> None:
        """Promise a new zone its disk; nothing for one of 0 bytes.  Exhausted, with the numbers."""
        ...

    def adopt(self, zone_id: str, size_bytes: int) -> None:
        """Take over the promise to a zone that exists."""
        ...

    def make(self, zone_id: str) -> DiskSpec | None:
        """Make the disk, which reads as zeros; None: the zone was promised none.

        Exhausted, Broken: of the host's disk; ``remove`` then cleans up.
        """
        ...

    def remove(self, zone_id: str) -> None:
        """Remove the disk, once no domain has it, and the promise; fine where there is none."""
        ...

    def zones(self) -> list[str]:
        """The zones that have one."""
        ...

    def room(self) -> ScratchRoom: ...


class HostFiles(Protocol):
    """Small files of the host, for copies in zones.  Nothing in it waits for a file server without end."""

    async def find(self, zone_id: str, wanted: Sequence[WantedFiles], timeout: float) -> list[FoundFiles]:
        """Find them, each as a tree that can be copied or with the reason why not; the caller closes them.

        TooLate; Refused when earlier questions have not come back.
        """
        ...

    async def read(self, zone_id: str, tree: FileTree, chunks: Sequence[FileChunk]) -> list[bytes]:
        """The contents of chunks; FilesChanged when the tree is not any more what was found."""
        ...

    async def give_back(self, zone_id: str, volume: FileVolume, content: bytes, timeout: float) -> None:
        """Replace what the volume's file has; Refused when another one is at its path.  TooLate."""
        ...


class Splice(Protocol):
    """Joins a zone's interface to its pod's.  It finishes what it begins, as ``ZoneVolumes`` does."""

    async def __call__(
        self, host_interface: str, netns: str, interface: str, *, spoof_check: bool
    ) -> GuestNetwork:
        """Join the host's end of the zone's interface to CNI's interface in the namespace; may be repeated.

        What the guest has to set on its own interface.  ``spoof_check``: only frames from, and for, the pod's
        own addresses pass.
        """
        ...
