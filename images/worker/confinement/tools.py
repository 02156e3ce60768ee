"""Runs programs of the host for the daemon's threads: confined, under the parent of workers."""

from __future__ import annotations

import functools
import os
import re
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from daemonkit.host.children import settle
from images.bounds.limits import ImageLimits
from images.worker.confinement.program import Order

# Beyond the limits of images: the program, and its queues of blocks.
_OWN_BYTES = 512 << 20
_LIBRARY = re.compile(r"^\t(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)


class ConfinedTool:
    """A running program: see rootfs.squash.RunningTool."""

    def __init__(self, asker: socket.socket) -> None:
        self._asker = asker
        self._status: int | None = None
        self._ended = False

    def wait(self) -> int | None:
        """The exit status, negative for a signal; None: unknown. May be repeated."""
        if not self._ended:
            said = self._asker.recv(4)
            self._ended = True
            self._status = os.waitstatus_to_exitcode(int.from_bytes(said, "little")) if said else None
            self._asker.close()
        return self._status

    def kill(self) -> None:
        """Kill the process, from any thread; harmless after the exit."""
        with suppress(OSError):
            self._asker.shutdown(socket.SHUT_WR)


def order(program: str, arguments: Sequence[str], threads: int, limits: ImageLimits) -> Order:
    """An order to run a program with the limits of images."""
    state = os.stat(program)
    libraries = _libraries(program, state.st_ino, state.st_mtime_ns)
    folders = dict.fromkeys(os.path.dirname(one) for one in libraries)
    # The root directory has no ld.so cache.
    environment = {"LC_ALL": "C", "LD_LIBRARY_PATH": ":".join(folders)}
    return Order(
        program,
        arguments,
        libraries,
        environment,
        threads,
        limits.memory_bytes + _OWN_BYTES,
        limits.unpacked_bytes + limits.memory_bytes,
        limits.cpu_seconds * threads,
    )


@functools.lru_cache(maxsize=4)
def _libraries(program: str, *_: int) -> tuple[str, ...]:
    """The libraries of a program, found by its own loader (ld.so(8): LD_TRACE_LOADED_OBJECTS)."""
    environment = {"LD_TRACE_LOADED_OBJECTS": "1", "LC_ALL": "C"}
    with subprocess.Popen(
        [program],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as loader:
        settle(loader.pid)
        said = loader.communicate()[0]
    return tuple(_LIBRARY.findall(said))
