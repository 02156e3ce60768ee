"""Compiles seccomp profiles of containers and of daemon processes to BPF with libseccomp.

Source: seccomp_init(3), seccomp_rule_add(3), seccomp_attr_set(3), seccomp_export_bpf(3), seccomp.h of
libseccomp 2.5.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from daemonkit.faults import Broken

_COMPILE = "compile"
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_ATTR_BAD_ARCH = 2  # SCMP_FLTATR_ACT_BADARCH
_NO_SYSCALL = -1  # __NR_SCMP_ERROR
_OPERATORS = ("", *(f"SCMP_CMP_{name}" for name in ("NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ")))
_EPERM = 1
_MOST_BYTES = 1 << 18
"""Most bytes to read; a filter has at most 4096 instructions of eight bytes."""


class _Comparison(ctypes.Structure):
    """libseccomp's struct scmp_arg_cmp."""

    _fields_ = [  # noqa: RUF012 - ctypes' own way
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    ]


def compiled(profile: Mapping[str, Any]) -> bytes:
    """Compile a profile to BPF, for this machine's architecture and the older ones in the profile.

    ``profile``: OCI's ``linux.seccomp``, trusted, with actions ALLOW, ERRNO and KILL_PROCESS alone.  System
    calls unknown to the library are left out, as in crun.  Broken: the library is missing, or refuses.
    """
    library = _library()
    default = _action(profile["defaultAction"], profile.get("defaultErrnoRet"))
    with _filter(library, default) as made:
        if default == _KILL:
            # The default for calls of another architecture would kill only the thread.
            _check_result(
                library.seccomp_attr_set(made, _ATTR_BAD_ARCH, _KILL), "set the action for other machines"
            )
        for name in profile["architectures"]:
            number = library.seccomp_arch_resolve_name(name.removeprefix("SCMP_ARCH_").lower().encode())
            # 0: unknown; seccomp_arch_add would take 0 for this machine.
            result = library.seccomp_arch_add(made, number) if number else -errno.EINVAL
            _check_result(result, name, ignored=errno.EEXIST)
        for rule in profile["syscalls"]:
            _add_rule(library, made, rule)
        return _exported(library, made)


def _add_rule(library: ctypes.CDLL, made: int, rule: Mapping[str, Any]) -> None:
    action = _action(rule["action"], rule.get("errnoRet"))
    arguments = [
        _Comparison(one["index"], _OPERATORS.index(one["op"]), one["value"], one["valueTwo"])
        for one in rule.get("args", ())
    ]
    array = (_Comparison * len(arguments))(*arguments)
    for name in rule["names"]:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number != _NO_SYSCALL:
            result = library.seccomp_rule_add_array(made, action, number, len(arguments), array)
            _check_result(result, name)


def _exported(library: ctypes.CDLL, made: int) -> bytes:
    file = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    try:
        _check_result(library.seccomp_export_bpf(made, file), "export")
        return os.pread(file, _MOST_BYTES, 0)
    finally:
        os.close(file)


def _action(name: str, number: int | None) -> int:
    if name == "SCMP_ACT_ALLOW":
        return _ALLOW
    if name == "SCMP_ACT_ERRNO":
        return _ERRNO | (_EPERM if number is None else number)
    if name == "SCMP_ACT_KILL_PROCESS":
        return _KILL
    raise Broken(_COMPILE, "seccomp profile", f"its action {name} is not compiled here")


@contextmanager
def _filter(library: ctypes.CDLL, action: int) -> Iterator[int]:
    made = library.seccomp_init(action)
    if not made:
        raise Broken(_COMPILE, "seccomp profile", "libseccomp makes no filter")
    try:
        yield made
    finally:
        library.seccomp_release(made)


def _check_result(result: int, what: str, ignored: int = 0) -> None:
    if result < 0 and result != -ignored:
        raise Broken(_COMPILE, "seccomp profile", f"libseccomp: {what}: {os.strerror(-result)}")


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError as error:
        raise Broken(_COMPILE, "seccomp profile", str(error), "install libseccomp2") from error
    context, number = ctypes.c_void_p, ctypes.c_uint32
    library.seccomp_init.argtypes, library.seccomp_init.restype = [number], context
    library.seccomp_release.argtypes, library.seccomp_release.restype = [context], None
    library.seccomp_arch_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_arch_resolve_name.restype = number
    library.seccomp_attr_set.argtypes = [context, ctypes.c_int, number]
    library.seccomp_arch_add.argtypes = [context, number]
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_rule_add_array.argtypes = [
        context, number, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Comparison),
    ]  # fmt: skip
    library.seccomp_export_bpf.argtypes = [context, ctypes.c_int]
    return library
