"""Takes all rights from a worker: the worker has the given descriptors, and nothing else of the host.

The parent of workers makes the namespaces once; each child enters the namespaces, takes a user id of its own,
drops all capabilities, and filters its system calls. The reasons: docs/adr/0060-confined-workers.md. A daemon
without root can make no namespaces and has no capabilities to drop; all other steps apply.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from daemonkit.host import rights, seccomp
from daemonkit.host.rights import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REMOUNT
from images.worker.confinement import system_calls

FIRST_ID = 2_000_000_000
"""A worker's user and group id are this plus its process number: no other process has the same ids.

systemd's UIDS-GIDS calls the range from 1,879,048,192 to 2,147,483,647 unused.
"""

_PLAIN = MS_NOSUID | MS_NODEV | MS_NOEXEC
_TMPFS = "mode=755,nr_inodes=64,size="
_CERTIFICATES = (
    "/etc/ssl",
    "/etc/pki",
    "/usr/lib/ssl",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
)
_RESOLVER = ("/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf")
_FRESH = "/run"
# The C library loads no other module, and therefore no code of the host.
_SERVICES = b"hosts: files dns\n"
_ONLINE_THREADS = 64


class Needs(NamedTuple):
    """Rights beyond the given descriptors. handles: how many more; file_bytes: the size of written files."""

    handles: int = 0
    file_bytes: int = 0


NOTHING = Needs()


class Confinement:
    """Made once, in a process of one thread that has loaded all code for its children."""

    def __init__(self, network: bool = False) -> None:
        """network: children keep the host's network, resolve host names, and read the host's certificates.

        Raises OSError if a daemon running as root may not confine, and Broken without libseccomp.
        """
        self._network = network
        self._filter = rights.CallFilter(
            seccomp.compiled(system_calls.online() if network else system_calls.offline())
        )
        self._is_root = prepared()
        names = ("mnt",) if network else APART
        self._namespaces = (
            rights.namespaces(names, _online_root if network else _empty_root) if self._is_root else {}
        )

    def enter(self, given: Sequence[int], parent: int, needs: Needs = NOTHING) -> None:
        """Confine this process for good; call in a new child, before it reads a byte.

        given: descriptors to keep open; parent: the forking process; this process dies with its parent.
        Raises OSError; the process must then end.
        """
        rights.end_with(parent)
        fresh = _resolver_files() if self._network and self._is_root else {}
        null = os.open(os.devnull, os.O_RDWR)
        rights.enter(self._namespaces)
        if fresh:
            _put(fresh)
        for standard in range(3):
            os.dup2(null, standard)
        rights.close_others(given)
        rights.limit(
            {
                resource.RLIMIT_NOFILE: max((2, *given)) + 1 + needs.handles,
                resource.RLIMIT_FSIZE: needs.file_bytes,
                resource.RLIMIT_NPROC: _ONLINE_THREADS if self._network else 1,
            }
        )
        lock(self._filter, parent, self._is_root)


APART = ("mnt", "net")
"""Namespaces for each child; all others come from the parent."""


def prepared() -> bool:
    """Drop the parent's unneeded rights; returns whether the parent is root. May be repeated.

    Each step here saves a step in every child.
    """
    is_root = os.geteuid() == 0
    if is_root:
        rights.unshare(("ipc", "uts", "cgroup"))
        rights.renounce()
    rights.no_new_privileges()
    rights.limit({resource.RLIMIT_CORE: 0, resource.RLIMIT_MEMLOCK: 0, resource.RLIMIT_MSGQUEUE: 0})
    return is_root


def lock(calls_left: rights.CallFilter, parent: int, is_root: bool) -> None:
    """The last steps of confining a process."""
    if is_root:
        rights.become(FIRST_ID + os.getpid())
    rights.hide()
    # Again: a change of ids resets the parent-death signal.
    rights.end_with(parent)
    calls_left.set()


def new_top() -> Path:
    """An empty file system of this mount namespace, as the base of a root directory."""
    rights.keep_mounts()
    # Every host has /proc, and nothing below /proc is bound into the new root.
    rights.mount("tmpfs", "/proc", "tmpfs", _PLAIN, f"{_TMPFS}1m")
    return Path("/proc")


def bind(source: str, place: Path, flags: int = _PLAIN) -> None:
    """A read-only mount of a file or directory at another place."""
    rights.mount(source, str(place), None, MS_BIND)
    rights.mount(None, str(place), None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)


def close_top(top: Path) -> None:
    """Make ``top`` the root directory, read-only."""
    rights.pivot(str(top))
    rights.mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | _PLAIN)


def _empty_root() -> None:
    close_top(new_top())


def _online_root() -> None:
    """The host's certificates, and places for the files of the resolver."""
    top = new_top()
    (top / "etc").mkdir()
    (top / _FRESH[1:]).mkdir()
    for name in ("/etc/nsswitch.conf", *_RESOLVER):
        os.symlink(f"{_FRESH}/{os.path.basename(name)}", top / name[1:])
    for one in filter(os.path.isdir, _CERTIFICATES):
        place = top / one[1:]
        place.mkdir(parents=True, exist_ok=True)
        bind(one, place)
    close_top(top)


def _resolver_files() -> dict[str, bytes]:
    """The host's present resolver files by name. Copies, because a bind mount would miss replaced files."""
    found = {"nsswitch.conf": _SERVICES}
    for name in _RESOLVER:
        with suppress(FileNotFoundError):
            found[os.path.basename(name)] = Path(name).read_bytes()
    return found


def _put(fresh: Mapping[str, bytes]) -> None:
    rights.unshare(("mnt",))
    rights.mount("tmpfs", _FRESH, "tmpfs", _PLAIN, f"{_TMPFS}16m")
    os.umask(0o022)
    for name, data in fresh.items():
        Path(_FRESH, name).write_bytes(data)
