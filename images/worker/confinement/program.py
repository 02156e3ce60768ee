"""Runs the host's tar2sqfs confined: the program sees its own file, its libraries, and its output.

The program reads standard input and writes one file. The program's user owns the file during the run.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

from daemonkit.host import rights, seccomp
from daemonkit.host.rights import MS_NODEV, MS_NOSUID
from images.worker.confinement import system_calls
from images.worker.confinement.confine import APART, FIRST_ID, bind, close_top, lock, new_top, prepared

OUT = "/out"
"""The output file, as the program sees it."""
_HANDLES = 32
_MORE_THREADS = 8
_THREAD_BYTES = 16 << 20


class Order(NamedTuple):
    """A program to run, as found by the daemon; all paths are absolute.

    threads: number of started threads; memory, file_bytes: bytes; cpu: seconds, 0: no limit.
    """

    program: str
    arguments: Sequence[str]
    libraries: Sequence[str]
    environment: Mapping[str, str]
    threads: int
    memory: int
    file_bytes: int
    cpu: int


class ProgramConfinement:
    """The root directories of programs, made at the first run, and again after a program changed on disk."""

    def __init__(self) -> None:
        self._filter = rights.CallFilter(seccomp.compiled(system_calls.program()))
        self._is_root = prepared()
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self._namespaces: dict[str, int] = {}

    def prepared(
        self, order: Order, parent: int, source: int, errors: int, out: int
    ) -> Callable[[], NoReturn]:
        """The main function of a child that becomes the program; call after the fork.

        source, errors: the program's standard input and error output; out: its output file.
        """
        try:
            self._prepare(order)
        except OSError as error:
            return partial(_fail, errors, str(error))
        return partial(self._run, order, parent, source, errors, out)

    def _prepare(self, order: Order) -> None:
        files = (order.program, *order.libraries)
        seen = tuple((one, state.st_ino, state.st_mtime_ns) for one in files if (state := os.stat(one)))
        if seen == self._seen or not self._is_root:
            return
        made = rights.namespaces(APART, lambda: _root(files))
        for handle in self._namespaces.values():
            os.close(handle)
        self._namespaces, self._seen = made, seen

    def _run(self, order: Order, parent: int, source: int, errors: int, out: int) -> NoReturn:
        try:
            os.dup2(errors, 2)
            rights.end_with(parent)
            rights.name(os.path.basename(order.program))
            os.dup2(source, 0)
            target = self._enter(out) if self._is_root else f"/proc/self/fd/{os.dup2(out, 3)}"
            rights.close_others(() if self._is_root else (3,))
            rights.limit(_limits(order))
            lock(self._filter, parent, self._is_root)
            command = [os.path.basename(order.program), *order.arguments, target]
            os.execve(order.program, command, order.environment)
        except OSError as error:
            _fail(2, str(error))
        finally:
            os._exit(127)

    def _enter(self, out: int) -> str:
        mounted = rights.clone(out)
        rights.enter(self._namespaces)
        # For this run alone: each run has its own output file at /out.
        rights.unshare(("mnt",))
        rights.attach_mount(mounted, OUT)
        own = FIRST_ID + os.getpid()
        os.fchown(out, own, own)
        return OUT


def _fail(errors: int, cause: str) -> NoReturn:
    os.write(errors, f"it cannot be run: {cause}".encode())
    os._exit(127)


def _root(files: Sequence[str]) -> None:
    top = new_top()
    (top / OUT[1:]).touch()
    for one in files:
        place = top / one[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        bind(one, place, MS_NOSUID | MS_NODEV)
    close_top(top)


def _limits(order: Order) -> dict[int, int]:
    threads = order.threads + _MORE_THREADS
    found = {
        resource.RLIMIT_NOFILE: _HANDLES,
        resource.RLIMIT_NPROC: threads,
        # Not the address space: the C library reserves large parts for each thread.
        resource.RLIMIT_DATA: order.memory + threads * _THREAD_BYTES,
        resource.RLIMIT_FSIZE: order.file_bytes,
    }
    return found | ({resource.RLIMIT_CPU: order.cpu} if order.cpu else {})
