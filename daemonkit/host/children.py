"""Settles child processes of a daemon: removes OOM protection, moves them to a control group of their own,
and lowers their CPU priority during long work.

Children inherit systemd's ``OOMScoreAdjust=``.  A converter or plugin that exhausts the host's memory would
be spared, and another process killed instead. The child has to go before xenstored and other processes with
0.

The group is ``children`` in the daemon's delegated group, if any.  The group has no controllers: the daemon
may therefore stay in the parent group, and systemd can start the next daemon while children of the last one
live.

Sources: proc_pid_oom_score_adj(5), setpriority(2), sched(7), systemd CGROUP_DELEGATION.md.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from daemonkit.host import cgroups

log = logging.getLogger(__name__)

GROUP = "children"
SCORE = 100
"""Least oom_score_adj of a child: counts as a tenth of the host's memory besides its own."""
NICER = 10
"""Added to the niceness of a low-priority child: about a tenth of a daemon's CPU time."""
_NUMBER = 64
"""Bytes; more than any number has in a file of the kernel."""
_GONE = (errno.ESRCH, errno.ENOENT)


def settle(pid: int) -> None:
    """Make a child and its own children ordinary processes.  Call right after the start.

    Later children inherit the settings.  Blocks, for up to 10 ms or so if a group exists.  A child that has
    ended is fine; other failures are logged.
    """
    waiting, seen = [pid], set[int]()
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        try:
            _expose(each)
            for group in _groups():
                _write_file(group / "cgroup.procs", str(each))
        except OSError as error:
            _report(each, error)
        # List children last: a child started after this line inherits the settings.
        waiting += _children(each)


def lower_session(leader: int) -> None:
    """Give all processes of a child's session together a low CPU priority.

    The kernel can share the CPUs among sessions first (sched(7), "The autogroup feature"). Busy children in
    the daemon's session would use up the daemon's own share, and delay its threads.  Without the feature,
    nothing happens.  Failures are as settle()'s: without CAP_SYS_ADMIN the kernel accepts one change in
    100 ms.
    """
    try:
        _write_file(Path(f"/proc/{leader}/autogroup"), str(NICER))
    except OSError as error:
        _report(leader, error)


def _report(pid: int, error: OSError) -> None:
    if error.errno not in _GONE:
        log.warning("process %d keeps what is the daemon's: %s", pid, error)


def _expose(pid: int) -> None:
    place = Path(f"/proc/{pid}/oom_score_adj")
    if int(_read_file(place)) < SCORE:
        _write_file(place, str(SCORE))


def _children(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                text = Path(f"/proc/{pid}/task/{task}/children").read_text()
                yield from map(int, text.split())


@functools.cache
def _groups() -> tuple[Path, ...]:
    """Make the group for children, once, since the daemon's own group does not change."""
    made = []
    for own in cgroups.own_groups():
        if not cgroups.delegated(own):
            continue
        group = own / GROUP
        try:
            group.mkdir(exist_ok=True)
        except OSError as error:
            log.warning("no group for what this daemon starts: %s", error)
            continue
        made.append(group)
    return tuple(made)


def _read_file(place: Path) -> str:
    # In one read: a second read would append the end of a longer number written in between.
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _NUMBER).decode()
    finally:
        os.close(descriptor)


def _write_file(place: Path, text: str) -> None:
    # Without O_CREAT and O_TRUNC: the file exists, and one write is one command.
    descriptor = os.open(place, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
