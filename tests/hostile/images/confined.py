"""Runs code of a test in a process that is confined as a worker of images is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from daemonkit.host import seccomp
from images.worker.confinement.confine import FIRST_ID

_PROGRAM = """
import ctypes, encodings.idna, errno, hashlib, json, mmap, os, signal, socket, ssl, sys, threading
from images.worker.confinement.confine import Confinement

network, code = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
ssl.create_default_context()
scope = dict(globals())
exec(compile(code, "test", "exec"), scope)
confinement = Confinement(network)
parent = os.getpid()
said, saying = os.pipe()
pid = os.fork()
if pid == 0:
    confinement.enter([saying], parent)
    try:
        words = json.dumps(scope["act"]())
    except OSError as error:
        words = json.dumps(errno.errorcode.get(error.errno, str(error)))
    os.write(saying, words.encode())
    scope.get("stay", int)()
    os._exit(0)
os.close(saying)
print(pid, flush=True)
with open(said) as file:
    words = file.read(1 << 16)
    print(json.dumps([words, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]), flush=True)
"""


class Ended(NamedTuple):
    """said: the result of act(), or the name of its error; status: of the process, negative for a signal."""

    said: object
    status: int


def confined(code: str, network: bool = False) -> Ended:
    """The end of a confined process that calls the code's function act()."""
    done = subprocess.run(_command(code, network), stdout=subprocess.PIPE, check=True, text=True)
    words, status = json.loads(done.stdout.splitlines()[1])
    return Ended(json.loads(words) if words else None, status)


@contextmanager
def confined_for_a_while(network: bool = False) -> Iterator[int]:
    """The pid of a confined process that has said a word and sleeps."""
    code = "import time\ndef act(): return 1\ndef stay(): time.sleep(600)"
    with subprocess.Popen(_command(code, network), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            # The process has its own id and a filter at the end of its set-up.
            while "Seccomp:\t2" not in (status := Path(f"/proc/{pid}/status").read_text()):
                assert "State:\tZ" not in status
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)


def status_of(pid: int) -> dict[str, list[str]]:
    """The fields of proc_pid_status(5)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.split() for key, _, value in (line.partition(":") for line in lines)}


def assert_without_rights(pid: int) -> None:
    """The process has a user of its own, and nothing else."""
    status = status_of(pid)
    own = str(FIRST_ID + pid)
    assert status["Uid"] == status["Gid"] == [own] * 4
    assert status["Groups"] == []
    assert {status[f"Cap{name}"][0] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])


def assert_apart(pid: int, network: bool = False) -> None:
    """The process shares no namespace with the test; network: except the network's."""
    for name in ("mnt", "ipc", "uts", "cgroup", "net"):
        shared = os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}")
        assert shared == (network and name == "net"), name


def number_of(call: str) -> int:
    """The number of a system call on this machine."""
    found: int = seccomp._library().seccomp_syscall_resolve_name(call.encode())
    assert found >= 0, call
    return found


def _command(code: str, network: bool) -> list[str]:
    return [sys.executable, "-c", _PROGRAM, json.dumps([network, code])]
