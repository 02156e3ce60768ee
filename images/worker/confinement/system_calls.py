"""The system calls of confined workers, as seccomp profiles: all other calls kill the process.

Found by running the tests of images; calls unknown to the machine are left out.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import socket
from collections.abc import Mapping
from typing import Any

_CLONE_THREAD = 0x10000
_FIONBIO, _FIOCLEX, _FIONCLEX, _FIONREAD, _TCGETS = 0x5421, 0x5451, 0x5450, 0x541B, 0x5401

_BYTES = "read readv pread64 write writev lseek close dup fcntl fstat newfstatat statx ftruncate"
_WAITING = "poll ppoll select pselect6 clock_nanosleep nanosleep restart_syscall"
_MEMORY = "brk munmap mremap madvise"
_ITSELF = (
    "getpid gettid getppid getuid geteuid getgid getegid getrusage gettimeofday clock_gettime clock_getres "
    "time getrandom sched_yield sched_getaffinity futex rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack "
    "setrlimit getrlimit exit exit_group"
)
_CONNECTED = "recvfrom recvmsg sendto getsockname"
"""On a socket from the daemon."""
_BY_NAME = "open openat openat2 stat lstat access faccessat faccessat2 readlink readlinkat getcwd"
"""The root directory is empty."""

_THREADS = "set_robust_list rseq sched_setaffinity set_tid_address membarrier"
_SOCKETS = (
    "connect bind sendmsg sendmmsg recvmmsg shutdown setsockopt getsockopt getsockname getpeername pipe2 "
    "eventfd2 epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 uname"
)
_PROGRAM = (
    "execve openat open stat access faccessat faccessat2 readlink readlinkat getcwd unlink unlinkat "
    "arch_prctl pwrite64 pwritev fsync fdatasync fallocate statfs fstatfs sysinfo uname"
)
"""The root directory is read-only, without other programs."""
_READ_ONLY = "stat lstat access faccessat faccessat2 readlink readlinkat getcwd getdents64 statfs fstatfs"


def offline() -> Mapping[str, Any]:
    """For a worker without network: lookups of file names fail."""
    return _profile(*_common(), _refuse(_BY_NAME, errno.ENOENT))


def online() -> Mapping[str, Any]:
    """For a worker with network: TCP and UDP sockets, threads, and reading files."""
    return _profile(
        *_common(),
        *(_allow("socket", _is(0, family)) for family in (socket.AF_INET, socket.AF_INET6)),
        # The C library tries nscd and netlink (for the host's addresses), and works without both.
        *(
            _refuse("socket", errno.EAFNOSUPPORT, _is(0, family))
            for family in (socket.AF_UNIX, socket.AF_NETLINK)
        ),
        _allow("socketpair", _is(0, socket.AF_UNIX)),
        _allow(_SOCKETS),
        _allow("openat", _masked(2, os.O_ACCMODE | os.O_CREAT | os.O_TRUNC, os.O_RDONLY)),
        _allow("open", _masked(1, os.O_ACCMODE | os.O_CREAT | os.O_TRUNC, os.O_RDONLY)),
        _allow(_READ_ONLY),
        *_threads(),
    )


def program() -> Mapping[str, Any]:
    """For a program: start, load libraries, read a pipe, write a file, run threads."""
    return _profile(*_anyone(), _allow("mmap mprotect"), *_threads(), _allow(_PROGRAM))


def _common() -> list[dict[str, Any]]:
    # No new code.
    no_code = (_allow(name, _masked(2, mmap.PROT_EXEC, 0)) for name in ("mmap", "mprotect"))
    return [*_anyone(), *no_code, _allow(_CONNECTED)]


def _threads() -> list[dict[str, Any]]:
    return [
        _allow("clone", _masked(0, _CLONE_THREAD, _CLONE_THREAD)),
        # The flags are in memory, hidden from seccomp filters; the C library falls back to clone.
        _refuse("clone3", errno.ENOSYS),
        _allow(_THREADS),
    ]


def _anyone() -> list[dict[str, Any]]:
    return [
        _allow(" ".join((_BYTES, _WAITING, _MEMORY, _ITSELF))),
        _allow("prlimit64", _is(0, 0)),
        *(_allow("ioctl", _is(1, one)) for one in (_FIONBIO, _FIOCLEX, _FIONCLEX, _FIONREAD, _TCGETS)),
        # Names for memory, set by new C libraries.
        _refuse("prctl", errno.EINVAL),
        # abort(3), because its signal is more informative than the filter's.
        _allow("tgkill", _is(2, signal.SIGABRT)),
    ]


def _profile(*rules: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"defaultAction": "SCMP_ACT_KILL_PROCESS", "architectures": [], "syscalls": list(rules)}


def _allow(names: str, *arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"names": names.split(), "action": "SCMP_ACT_ALLOW", "args": arguments}


def _refuse(names: str, number: int, *arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"names": names.split(), "action": "SCMP_ACT_ERRNO", "errnoRet": number, "args": arguments}


def _is(index: int, value: int) -> Mapping[str, Any]:
    return {"index": index, "op": "SCMP_CMP_EQ", "value": value, "valueTwo": 0}


def _masked(index: int, mask: int, value: int) -> Mapping[str, Any]:
    return {"index": index, "op": "SCMP_CMP_MASKED_EQ", "value": mask, "valueTwo": value}
