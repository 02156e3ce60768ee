"""Runs workers for the daemon's threads: a job in, a result or fault out; killed on cancellation."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from fcntl import fcntl
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import images
from daemonkit.host import cgroups
from daemonkit.host.children import NICER, lower_session, settle
from images.bounds.cancel import CancelToken
from images.bounds.fields import FieldReader
from images.bounds.limits import ImageLimits
from images.concurrency import tenant
from images.worker.answer_frames import JobOutcome
from images.worker.confinement.tools import ConfinedTool, order
from images.worker.cpu_accounts import tenant_key
from images.worker.ends import end_of
from images.worker.handles import ONLINE, PROGRAM, WORKER, send_order
from images.worker.jobs import CONVERSE, OWN_BYTES
from images.worker.session import Pipe, Worker

T = TypeVar("T")
log = logging.getLogger(__name__)
PIPE_BYTES = 1 << 20
_GROUP = "image-workers"
_F_SETPIPE_SZ = 1031
# The environment variables of a worker's parent, besides proxy variables.
_VARIABLES = ("LANG", "LOCALDOMAIN", "PATH", "RES_OPTIONS")
_PREFIXES = ("LC_", "LD_", "PYTHON", "SSL_CERT_")


class WorkerParent:
    """The process that forks workers. Starts with the first order, and again after an unexpected end."""

    def __init__(self, limits: ImageLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End the process and all its workers."""
        with self._lock:
            if self._control is not None:
                self._control.close()
            if self._process is not None:
                # The process ends when it sees the closed socket.
                self._process.wait()
            self._control = self._process = None

    def send(self, handles: list[int], kind: bytes = WORKER, text: bytes = b"") -> None:
        """Have the process fork, at the cost of the current work's tenant.

        If the fork fails, the worker's reader sees an ended worker.
        """
        with self._lock:
            # A killed parent ended its workers: their pulls have failed, and later pulls get a new parent.
            if self._control is None or self._process is None or self._process.poll() is not None:
                if self._control is not None:
                    self._control.close()
                self._control, self._process = _started()
                _hold(self._process.pid, self._limits)
            try:
                send_order(self._control, handles, kind, text, tenant_key(tenant()))
            except (BrokenPipeError, ConnectionResetError):
                return
            except BaseException:
                # The parent may still wait for handles: end it, and let the next job start a new parent.
                self._control.close()
                self._process.wait()
                self._control = None
                raise


class LayerWorkers:
    """Shared by the whole daemon. The parents start with the first jobs, and stay until close()."""

    def __init__(self, limits: ImageLimits) -> None:
        self._limits = limits
        self._told = asdict(limits)
        self._offline = WorkerParent(limits)
        # This parent has loaded the code for registries. Its forks cost twice as much.
        self._online = WorkerParent(limits)

    def close(self) -> None:
        """End the parents, and all workers with them."""
        self._offline.close()
        self._online.close()

    @property
    def limits(self) -> ImageLimits:
        """The limits of images."""
        return self._limits

    def run(
        self,
        job: str,
        arguments: Sequence[Any],
        token: CancelToken,
        outcome: JobOutcome,
        decode: Callable[[FieldReader], T],
        feed: Iterable[bytes] = (),
        files: Sequence[int] = (),
        sink: int | None = None,
    ) -> T:
        """The answer to a job; the first argument is the subject, for messages.

        decode: takes the answer's fields; feed: a layer's bytes; files: handles for the worker; sink: the
        pipe of a tar2sqfs. Raises the worker's fault, Oversized if the worker exceeded a limit, Broken,
        Cancelled, and feed's errors. The worker has then ended.
        """
        with closing(self._start(job, arguments, os.pipe(), files, sink)) as worker:
            return worker.ask(None, token, outcome, decode, feed)

    def start_tool(
        self, program: str, arguments: Sequence[str], threads: int, source: int, errors: int, out: int
    ) -> ConfinedTool:
        """See rootfs.squash.Tools."""
        text = json.dumps(order(program, arguments, threads, self._limits)).encode()
        asker, told = socket.socketpair()
        with told:
            self._offline.send([told.fileno(), source, errors, out], PROGRAM, text)
        return ConfinedTool(asker)

    def session(self, job: str, arguments: Sequence[Any]) -> Worker:
        """A worker for several requests, each with files if needed; call close() at the end."""
        its, mine = socket.socketpair()
        return self._start(job, arguments, (its.detach(), mine.detach()))

    def converse(self, told: bytes, control: int) -> Worker:
        """A worker with network that serves requests from the socket ``control``; call close() at the end.

        told: the briefing for PullServer.
        """
        return self._start(CONVERSE, ("", told), os.pipe(), sink=control, kind=ONLINE)

    def _start(
        self,
        job: str,
        arguments: Sequence[Any],
        ends: tuple[int, int],
        files: Sequence[int] = (),
        sink: int | None = None,
        kind: bytes = WORKER,
    ) -> Worker:
        """Start a worker, with pipes in and out, and a socket for its status.

        ends: the worker's end, then the writing end.
        """
        given, source = ends
        results, taken = os.pipe()
        asker, told = socket.socketpair()
        worker = Worker(
            job, str(arguments[0]), Pipe(source), Pipe(results), asker, partial(end_of, self._limits)
        )
        with ExitStack() as undo:
            undo.callback(worker.close)
            # The user's pipe quota may be used up; a small pipe works too. A socket has no pipe size.
            with suppress(OSError):
                fcntl(source, _F_SETPIPE_SZ, PIPE_BYTES)
            with told:
                try:
                    parent = self._online if kind == ONLINE else self._offline
                    parent.send(
                        [told.fileno(), given, taken, *([] if sink is None else [sink]), *files], kind
                    )
                finally:
                    os.close(given)
                    os.close(taken)
            worker.begin((job, self._told, len(files), tuple(arguments)))
            undo.pop_all()
        return worker


def _hold(parent: int, limits: ImageLimits) -> None:
    # One and a half workers of the largest size: less than the unit's MemoryMax.
    most = (limits.memory_bytes + OWN_BYTES) * 3 // 2
    try:
        held = cgroups.hold_memory(parent, _GROUP, most)
    except OSError as error:
        log.warning("workers of images have no limit of memory together: %s", error)
        return
    if not held:
        log.info("workers of images have no limit of memory together but that of xenpod-cri's own group")


def _is_for_workers(variable: str) -> bool:
    # No secret from the daemon's environment; and fewer variables make the search for proxies faster.
    return variable in _VARIABLES or variable.startswith(_PREFIXES) or variable.lower().endswith("_proxy")


def _started() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A new parent, and the socket for jobs; early jobs wait in the socket until the parent is up."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Without site.py: its import takes longer than all others together. Same module path as here.
    command = [sys.executable, "-P", "-S", "-m", "images.worker", str(NICER)]
    top = str(Path(images.__file__).parent.parent)
    environment = {name: value for name, value in os.environ.items() if _is_for_workers(name)}
    environment["PYTHONPATH"] = os.pathsep.join([top, *filter(None, sys.path)])
    try:
        parent = subprocess.Popen(
            command, stdin=its.fileno(), stdout=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    except BaseException:
        mine.close()
        raise
    finally:
        its.close()
    settle(parent.pid)
    lower_session(parent.pid)
    return mine, parent
