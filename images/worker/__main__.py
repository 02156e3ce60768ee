"""The parent of all workers: forks a worker for each job, reports its status, and ends with the daemon.

A fresh interpreter takes 60 ms of CPU time, a fork of this process 2 ms. The parent has one thread, hence
forks are complete copies, and never sees a byte of an image. Jobs come from standard input, a socket: see
workers.py.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, NoReturn

from images.worker.confinement.confine import Confinement, Needs
from images.worker.confinement.program import Order, ProgramConfinement
from images.worker.cpu_accounts import BURST_SECONDS, CpuAccounts
from images.worker.handles import ONLINE, PROGRAM, Given, receive_order
from images.worker.jobs import carry_out, load_modules, prepared, refuse

# If the host runs out of memory, the kernel kills workers and their parent before a daemon or a zone.
_OOM_SCORE = "500"
# Files of a request, and copies of the requests' socket.
_NEEDS = Needs(handles=32)
# Connections to registries, and sockets of the daemon for answers.
_SERVING = Needs(handles=256)
# The parent checks every tenth of a second which young children have used their tenant's burst of CPU time.
_LOOK = 0.1


class _Worker(NamedTuple):
    """ended: a pidfd; asker: a socket for the status. The daemon shuts its end to kill the worker."""

    tenant: bytes
    pid: int
    ended: int
    asker: socket.socket


class Parent:
    """The loop of forking and reaping."""

    def __init__(self, control: socket.socket, nicer: int) -> None:
        """nicer: added to the niceness of children only; the parent keeps the daemon's niceness."""
        self._control = control
        self._nicer = nicer
        self._confinements: dict[bool, Confinement] = {False: Confinement()}
        self._programs: ProgramConfinement | None = None
        self._workers: dict[int, _Worker] = {}
        self._accounts = CpuAccounts()
        self._settled = False
        self._short: set[_Worker] = set()
        self._look = 0.0
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def run(self) -> None:
        """Run until the daemon hangs up; then kill all workers."""
        while True:
            control = self._control.fileno()
            # Handle the control socket last: a new worker may reuse a handle number of an earlier event.
            events = self._poll.poll(1000 * _LOOK if self._short else None)
            for handle, _ in sorted(events, key=lambda event: event[0] == control):
                worker = self._workers.get(handle)
                if handle == control:
                    if not self._begin():
                        return
                elif worker is None:
                    continue
                elif handle == worker.ended:
                    self._reap(worker)
                else:
                    self._poll.unregister(worker.asker)
                    signal.pidfd_send_signal(worker.ended, signal.SIGKILL)
            self._have_long_ones_make_way()

    def _have_long_ones_make_way(self) -> None:
        """Otherwise a few large layers would delay all calls, and the pulls of all small images."""
        if (now := time.monotonic()) < self._look:
            return
        self._look = now + _LOOK
        # No child here has been waited for: the process numbers are still valid.
        long = {worker for worker in self._short if _cpu_seconds(worker.pid) >= BURST_SECONDS}
        for worker in long:
            _make_way(worker.pid)
        self._short -= long

    def _begin(self) -> bool:
        order = receive_order(self._control)
        if order is None:
            return False
        if not self._settled:
            # Again: the daemon may have lowered the score of this process, but only before the first order.
            _expose()
            self._settled = True
        asker, *given = order.handles
        parent = os.getpid()
        become = self._prepared(order, given, parent)
        in_debt = self._accounts.in_debt(order.tenant)
        # The daemon has placed this process: forks inherit its control group.
        pid = os.fork()
        if pid == 0:
            os.nice(self._nicer)
            if in_debt:
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            become()
        for handle in given:
            os.close(handle)
        worker = _Worker(order.tenant, pid, os.pidfd_open(pid), socket.socket(fileno=asker))
        self._workers |= {worker.ended: worker, asker: worker}
        if not in_debt:
            self._short.add(worker)
        self._poll.register(worker.ended, select.POLLIN)
        self._poll.register(asker, select.POLLIN)
        return True

    def _prepared(self, order: Given, given: list[int], parent: int) -> Callable[[], NoReturn]:
        """The main function of a new child. Makes each confinement once, before its first child."""
        if order.kind == PROGRAM:
            if self._programs is None:
                self._programs = ProgramConfinement()
            return self._programs.prepared(Order(*json.loads(order.text)), parent, *given)
        network = order.kind == ONLINE
        if network not in self._confinements:
            if network:
                load_modules()
                # Otherwise a garbage collection in a child would write to, and copy, all of these pages.
                gc.collect()
                gc.freeze()
            self._confinements[network] = Confinement(network)
        return partial(_work, self._confinements[network], network, given, parent)

    def _reap(self, worker: _Worker) -> None:
        _, status, usage = os.wait4(worker.pid, 0)
        self._accounts.charge(worker.tenant, usage.ru_utime + usage.ru_stime)
        self._short.discard(worker)
        for handle in (worker.ended, worker.asker.fileno()):
            del self._workers[handle]
        self._poll.unregister(worker.ended)
        os.close(worker.ended)
        with worker.asker:
            # After a kill, the handle is already unregistered.
            with suppress(KeyError):
                self._poll.unregister(worker.asker)
            # The daemon may no longer wait for the status.
            with suppress(BrokenPipeError, ConnectionResetError):
                worker.asker.send(status.to_bytes(4, "little"))


def _cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, in seconds: the clock id is that of clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


def _work(confinement: Confinement, network: bool, handles: list[int], parent: int) -> NoReturn:
    status = 1
    try:
        life = prepared(*handles) if network else partial(carry_out, *handles)
        try:
            confinement.enter(handles, parent, _SERVING if network else _NEEDS)
        except OSError as error:
            refuse(handles[1], error)
        else:
            life()
        status = 0
    finally:
        os._exit(status)


def _make_way(pid: int) -> None:
    """Give a child idle time only. With niceness alone a child would finish its current time slice."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        # The thread may have ended.
        with suppress(ProcessLookupError):
            os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))


def _expose() -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE)


def main() -> None:
    """Serve the daemon at the other end of standard input."""
    # A terminal's Ctrl-C is for the daemon.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _expose()
    # The library reads its configuration with the first digest.
    hashlib.new("sha256")
    with socket.socket(fileno=os.dup(0)) as control:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        parent = Parent(control, int(sys.argv[1]))
        gc.collect()
        gc.freeze()
        parent.run()


if __name__ == "__main__":
    main()
