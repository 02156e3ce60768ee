"""Takes all rights from a worker: it has the descriptors that it was given, and nothing else of the host.

The parent of workers makes the namespaces once; each child enters them, takes an id of its own, drops all
capabilities, and filters its system calls. The reasons: docs/adr/0060-confined-workers.md.

A daemon that is not root has no namespaces to make and no capabilities to drop; the rest holds there too.
Sources: setns(2), pivot_root(2), capabilities(7), prctl(2), seccomp(2), credentials(7).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cri.images.worker import calls
from daemonkit.host import seccomp

FIRST_ID = 2_000_000_000
"""A worker's user and group is this and its process number: nobody else's, and no other worker's.

systemd's UIDS-GIDS calls the range from 1,879,048,192 to 2,147,483,647 unused.
"""

_CLONE_NEWNS, _CLONE_NEWCGROUP, _CLONE_NEWUTS = 0x20000, 0x2000000, 0x4000000
_CLONE_NEWIPC, _CLONE_NEWNET = 0x8000000, 0x40000000
_NAMES = {
    "mnt": _CLONE_NEWNS,
    "cgroup": _CLONE_NEWCGROUP,
    "uts": _CLONE_NEWUTS,
    "ipc": _CLONE_NEWIPC,
    "net": _CLONE_NEWNET,
}
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_PLAIN = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 28, 38
# NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, and all bits locked, KEEP_CAPS included.
_SECUREBITS = 0b1110_1111
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522

_CERTIFICATES = (
    "/etc/ssl",
    "/etc/pki",
    "/usr/lib/ssl",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
)
_RESOLVER = ("/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf")
_FRESH = "/run"
# The C library loads no other module, and so no code of the host.
_SERVICES = b"hosts: files dns\n"
_ONLINE_THREADS = 64
_MOST_HANDLES = 1 << 30

_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]  # noqa: RUF012 - ctypes' own way


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]  # noqa: RUF012 - ctypes' own way


class Needs(NamedTuple):
    """Rights beyond the given descriptors. handles: how many more; file_bytes: the size of written files."""

    handles: int = 0
    file_bytes: int = 0


NOTHING = Needs()


class Confinement:
    """Made once, in a process of one thread that has loaded all code that its children need."""

    def __init__(self, network: bool = False) -> None:
        """network: children keep the host's network, find names of hosts, and read its certificates.

        Raises OSError where a daemon that is root may not confine, and Broken without libseccomp.
        """
        self._network = network
        program = seccomp.compiled(calls.online() if network else calls.offline())
        self._code = ctypes.create_string_buffer(program, len(program))
        self._filter = _Program(len(program) // 8, ctypes.addressof(self._code))
        self._is_root = os.geteuid() == 0
        self._namespaces = _made(network) if self._is_root else {}

    def enter(self, given: Sequence[int], parent: int, needs: Needs = NOTHING) -> None:
        """Confine this process for good; call it in a new child, before it reads a byte.

        given: the descriptors that it keeps; parent: the process that forked it, with which it ends. Raises
        OSError; the process must end then.
        """
        _end_with(parent)
        fresh = _resolver_files() if self._network and self._is_root else {}
        null = os.open(os.devnull, os.O_RDWR)
        for name, handle in self._namespaces.items():
            _check(_libc.setns(handle, _NAMES[name]), f"enter the {name} namespace")
        if self._namespaces:
            _put(fresh)
        for standard in range(3):
            os.dup2(null, standard)
        _close_others(given)
        _limit(
            max((2, *given)) + 1 + needs.handles, needs.file_bytes, _ONLINE_THREADS if self._network else 1
        )
        if self._is_root:
            _drop(FIRST_ID + os.getpid())
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _prctl(_PR_SET_DUMPABLE, 0)
        # Again: a change of ids clears it.
        _end_with(parent)
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(self._filter))


def _end_with(parent: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ProcessLookupError("the parent of workers has ended")


def _made(network: bool) -> dict[str, int]:
    """Open namespaces with a root of their own; this process visits them, and comes back."""
    names = [name for name in _NAMES if not (network and name == "net")]
    root, place = (os.open(one, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for one in ("/", "."))
    home = _opened(names)
    _check(_libc.unshare(_all(_NAMES[name] for name in names)), "make namespaces")
    made = _opened(names)
    _new_root(network)
    for name, handle in home.items():
        _check(_libc.setns(handle, _NAMES[name]), f"come back to the {name} namespace")
        os.close(handle)
    os.fchdir(root)
    os.chroot(".")
    os.fchdir(place)
    os.close(root)
    os.close(place)
    return made


def _opened(names: Iterable[str]) -> dict[str, int]:
    return {name: os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names}


def _new_root(network: bool) -> None:
    """Make a read-only root: empty, or with the host's certificates and places for files of the resolver."""
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    # Any directory would do; this one is always there, and holds nothing of what is bound.
    top = Path("/proc")
    _mount("tmpfs", str(top), "tmpfs", _PLAIN, "mode=755,nr_inodes=64,size=1m")
    if network:
        (top / "etc").mkdir()
        (top / _FRESH[1:]).mkdir()
        for name in ("/etc/nsswitch.conf", *_RESOLVER):
            os.symlink(f"{_FRESH}/{os.path.basename(name)}", top / name[1:])
    for one in filter(os.path.isdir, _CERTIFICATES if network else ()):
        place = top / one[1:]
        place.mkdir(parents=True, exist_ok=True)
        _mount(one, str(place), None, _MS_BIND)
        _mount(None, str(place), None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _PLAIN)
    os.chdir(top)
    _check(_libc.pivot_root(b".", b"."), "make a root directory")
    _check(_libc.umount2(b".", _MNT_DETACH), "leave the host's root directory")
    os.chdir("/")
    _mount(None, "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _PLAIN)


def _resolver_files() -> dict[str, bytes]:
    """Files by their names as the host has them now: they are replaced, not written, and so not bound."""
    found = {"nsswitch.conf": _SERVICES}
    for name in _RESOLVER:
        with suppress(FileNotFoundError):
            found[os.path.basename(name)] = Path(name).read_bytes()
    return found


def _put(fresh: dict[str, bytes]) -> None:
    if fresh:
        _check(_libc.unshare(_CLONE_NEWNS), "make a mount namespace")
        _mount("tmpfs", _FRESH, "tmpfs", _PLAIN, "mode=755,nr_inodes=64,size=16m")
        for name, data in fresh.items():
            Path(_FRESH, name).write_bytes(data)


def _close_others(given: Sequence[int]) -> None:
    last = 2
    for handle in (*sorted(given), _MOST_HANDLES):
        os.closerange(last + 1, handle)
        last = handle


def _limit(handles: int, file_bytes: int, threads: int) -> None:
    for kind, most in (
        (resource.RLIMIT_NOFILE, handles),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NPROC, threads),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        most = _lower(most, resource.getrlimit(kind)[1])
        resource.setrlimit(kind, (most, most))


def _lower(wanted: int, now: int) -> int:
    return wanted if now == resource.RLIM_INFINITY else min(wanted, now)


def _drop(number: int) -> None:
    """Become a user without groups and capabilities, who can never have any again."""
    one = 0
    while _libc.prctl(_PR_CAPBSET_DROP, one, 0, 0, 0) == 0:
        one += 1
    if not one:
        raise OSError(ctypes.get_errno(), "cannot drop capabilities")
    _prctl(_PR_SET_SECUREBITS, _SECUREBITS)
    os.setgroups(())
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
    header, nothing = _Header(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), nothing), "drop capabilities")


def _mount(source: str | None, place: str, kind: str | None, flags: int, options: str = "") -> None:
    given = [None if one is None else os.fsencode(one) for one in (source, place, kind)]
    _check(_libc.mount(*given, ctypes.c_ulong(flags), options.encode() or None), f"mount {place}")


def _prctl(option: int, value: int, more: object = 0) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), more, 0, 0), f"prctl {option}")


def _all(flags: Iterable[int]) -> int:
    found = 0
    for flag in flags:
        found |= flag
    return found


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)}")
