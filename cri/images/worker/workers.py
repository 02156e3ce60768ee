"""Workers as the daemon's threads use them: a job in, its result or its fault out; killed on cancel."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from fcntl import fcntl
from typing import Any

from cri.images.concurrency import CancelToken
from cri.images.errors import oversized
from cri.images.settings import ImageLimits
from cri.images.worker import wire
from daemonkit.faults import Broken

PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031


class LayerWorkers:
    """One for a daemon. The workers' parent is there while anybody holds it, and costs nothing else."""

    def __init__(self, limits: ImageLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._holders = 0
        self._control: socket.socket | None = None
        self._parent: subprocess.Popen[bytes] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the parent started, and kept while the body runs; blocks for a moment."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def hold(self) -> None:
        """Start the parent, unless it is there; release() once for each."""
        with self._lock:
            self._holders += 1
            if self._parent is not None and self._parent.poll() is not None:
                self._end()
            if self._parent is None:
                self._start()

    def release(self) -> None:
        """End the parent, unless somebody else holds it."""
        with self._lock:
            self._holders -= 1
            if not self._holders:
                self._end()

    def run(
        self,
        job: str,
        arguments: Sequence[Any],
        token: CancelToken,
        feed: Iterable[bytes] = (),
        sink: int | None = None,
        moved: Callable[[int], None] = lambda _: None,
    ) -> Any:
        """The result of a job; its first argument is the subject, for messages.

        feed: a layer's bytes; sink: the pipe of a tar2sqfs; moved: is told of bytes that were copied. Raises
        the worker's fault, Oversized when it took more than it may, Broken, Cancelled, and what feed raises.
        The worker has ended then.
        """
        with self.held(), ExitStack() as stack:
            source, results, asker = self._begin(stack, sink)
            with token.unblocking(lambda: _hang_up(asker)):
                try:
                    _give(source, (job, asdict(self._limits), tuple(arguments)), feed)
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

    def _begin(self, stack: ExitStack, sink: int | None) -> tuple[Pipe, int, socket.socket]:
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
        try:
            handles = [told.fileno(), given, taken, *([] if sink is None else [sink])]
            assert self._control is not None
            with suppress(BrokenPipeError, ConnectionResetError):
                # If the parent has gone, the worker has ended at once.
                socket.send_fds(self._control, [b"w"], handles)
        finally:
            told.close()
            os.close(given)
            os.close(taken)
        return pipe, results, asker

    def _end_of(self, job: str, subject: str, status: int | None) -> Exception:
        """The fault for a worker that ended without a word."""
        if status is not None and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number == signal.SIGXCPU:
                cause = f"it takes more than {self._limits.cpu_seconds} s of CPU time"
                return oversized(job, subject, cause, "cpu_seconds")
            if number == signal.SIGKILL:
                return Broken(
                    job, subject, "the process that read it was killed", "is the host out of memory?"
                )
            return Broken(job, subject, f"the process that read it ended by signal {number}")
        return Broken(job, subject, "the process that read it ended", "the log may have its last words")

    def _start(self) -> None:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", "-m", "cri.images.worker"]
        try:
            self._parent = subprocess.Popen(command, stdin=its.fileno(), stdout=subprocess.DEVNULL)
            self._control = mine
        except BaseException:
            mine.close()
            raise
        finally:
            its.close()

    def _end(self) -> None:
        assert self._control is not None and self._parent is not None
        # It ends as soon as it sees that, and its workers with it.
        self._control.close()
        self._parent.wait()
        self._control = self._parent = None


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
