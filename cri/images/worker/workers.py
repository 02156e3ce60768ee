"""Workers as the daemon's threads use them: a job in, its result or its fault out; killed on cancel."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from fcntl import fcntl
from pathlib import Path
from typing import Any

import cri
from cri.images.bounds.cancel import CancelToken
from cri.images.bounds.limits import ImageLimits
from cri.images.errors import oversized
from cri.images.worker import wire
from cri.images.worker.handles import PROGRAM, WORKER, send
from cri.images.worker.jobs import OWN_BYTES
from cri.images.worker.tools import ConfinedTool, order
from daemonkit.faults import Broken
from daemonkit.host import cgroups
from daemonkit.host.children import NICER, settle

log = logging.getLogger(__name__)

PIPE_BYTES = 1 << 20
_GROUP = "image-workers"
_NO_MEMORY = "is the host out of memory, or do workers together take more than they may?"
_F_SETPIPE_SZ = 1031


class LayerWorkers:
    """One for a daemon. The workers' parent is started with the first job, and stays until close()."""

    def __init__(self, limits: ImageLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._parent: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End the parent, and all workers with it."""
        with self._lock:
            if self._control is not None:
                self._control.close()
            if self._parent is not None:
                # It ends as soon as it sees that.
                self._parent.wait()
            self._control = self._parent = None

    def run(
        self,
        job: str,
        arguments: Sequence[Any],
        token: CancelToken,
        feed: Iterable[bytes] = (),
        sink: int | None = None,
        files: Sequence[Path] = (),
        moved: Callable[[int], None] = lambda _: None,
    ) -> Any:
        """The result of a job; its first argument is the subject, for messages.

        feed: a layer's bytes; sink: the pipe of a tar2sqfs; files: are opened for the worker; moved: is
        told of bytes that were copied. Raises
        the worker's fault, Oversized when it took more than it may, Broken, Cancelled, and what feed raises.
        The worker has ended then.
        """
        with ExitStack() as stack:
            source, results, asker = self._begin(stack, sink, files)
            with token.unblocking(lambda: _hang_up(asker)):
                try:
                    _give(source, (job, asdict(self._limits), len(files), tuple(arguments)), feed)
                    fields = _outcome(results, moved)
                except BaseException:
                    _hang_up(asker)
                    raise
                finally:
                    status = asker.recv(4)
            token.check()
        if fields is None:
            raise self._end_of(job, str(arguments[0]), int.from_bytes(status, "little") if status else None)
        what, value = fields
        if what == "fault":
            raise wire.fault(*value)
        return value

    def start_tool(
        self, program: str, arguments: Sequence[str], threads: int, source: int, errors: int, out: int
    ) -> ConfinedTool:
        """See rootfs.squash.Tools."""
        text = json.dumps(order(program, arguments, threads, self._limits)).encode()
        asker, told = socket.socketpair()
        with told:
            self._send([told.fileno(), source, errors, out], PROGRAM, text)
        return ConfinedTool(asker)

    def _begin(
        self, stack: ExitStack, sink: int | None, files: Sequence[Path]
    ) -> tuple[Pipe, int, socket.socket]:
        """A new worker: the pipe into it, the one out of it, and the socket of its end."""
        given, source = os.pipe()
        results, taken = os.pipe()
        asker, told = socket.socketpair()
        stack.callback(os.close, results)
        stack.enter_context(asker)
        pipe = stack.enter_context(closing(Pipe(source)))
        # The pipe quota of the user may be used up; a small pipe works too.
        with suppress(PermissionError):
            fcntl(source, _F_SETPIPE_SZ, PIPE_BYTES)
        with ExitStack() as opened:
            opened.enter_context(told)
            opened.callback(os.close, given)
            opened.callback(os.close, taken)
            handles = [told.fileno(), given, taken, *([] if sink is None else [sink])]
            for path in files:
                handles.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                opened.callback(os.close, handles[-1])
            self._send(handles)
        return pipe, results, asker

    def _end_of(self, job: str, subject: str, status: int | None) -> Exception:
        """The fault for a worker that ended without a word."""
        if status is not None and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number == signal.SIGXCPU:
                cause = f"it takes more than {self._limits.cpu_seconds} s of CPU time"
                return oversized(job, subject, cause, "cpu_seconds")
            if number == signal.SIGKILL:
                return Broken(job, subject, "the process that read it was killed", _NO_MEMORY)
            if number == signal.SIGSYS:
                cause = "the process that read it made a system call that no worker may make, and was killed"
                log.error("%s %r: %s; the image may attack this host", job, subject, cause)
                return Broken(job, subject, cause, "the image may attack this host")
            return Broken(job, subject, f"the process that read it ended by signal {number}")
        return Broken(job, subject, "the process that read it ended", "the log may have its last words")

    def _send(self, handles: list[int], kind: bytes = WORKER, text: bytes = b"") -> None:
        """Have the parent fork; when it cannot, whoever waits for the worker sees that it has ended."""
        with self._lock:
            # It may have been killed since, and its workers with it; their pulls failed, the next ones go on.
            if self._control is None or self._parent is None or self._parent.poll() is not None:
                if self._control is not None:
                    self._control.close()
                self._control, self._parent = _parent()
                _hold(self._parent.pid, self._limits)
            try:
                send(self._control, handles, kind, text)
            except (BrokenPipeError, ConnectionResetError):
                return
            except BaseException:
                # The parent may wait for the rest of the handles: it ends, and the next job has a new one.
                self._control.close()
                self._parent.wait()
                self._control = None
                raise


def _hold(parent: int, limits: ImageLimits) -> None:
    # Half as much again as one worker of the largest size: less than the unit's MemoryMax.
    most = (limits.memory_bytes + OWN_BYTES) * 3 // 2
    try:
        held = cgroups.hold_memory(parent, _GROUP, most)
    except OSError as error:
        log.warning("workers of images have no limit of memory together: %s", error)
        return
    if not held:
        log.info("workers of images have no limit of memory together but that of xenpod-cri's own group")


def _parent() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A new parent, and the socket that jobs go to; what is sent at once waits until it is up."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Without site.py, which takes longer than all that it needs; modules are where this process has them.
    command = [sys.executable, "-P", "-S", "-m", "cri.images.worker", str(NICER)]
    top = str(Path(cri.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([top, *filter(None, sys.path)])}
    try:
        parent = subprocess.Popen(command, stdin=its.fileno(), stdout=subprocess.DEVNULL, env=environment)
    except BaseException:
        mine.close()
        raise
    finally:
        its.close()
    settle(parent.pid)
    return mine, parent


class Pipe:
    """The writing end of a pipe, which may be closed twice."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def close(self) -> None:
        """Close it, unless it is."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


def _give(pipe: Pipe, job: tuple[Any, ...], feed: Iterable[bytes]) -> None:
    with closing(pipe):
        try:
            wire.put(pipe.handle, job)
            for chunk in feed:
                wire.write(pipe.handle, chunk)
        except BrokenPipeError:
            # It has found a fault, or has ended: the results say which.
            return


def _outcome(results: int, moved: Callable[[int], None]) -> tuple[str, Any] | None:
    """What came of a job; None: nothing."""
    try:
        while True:
            what, value = wire.take(results)
            if what != "moved":
                return what, value
            moved(value)
    except wire.Ended:
        return None


def _hang_up(asker: socket.socket) -> None:
    with suppress(OSError):
        asker.shutdown(socket.SHUT_WR)
