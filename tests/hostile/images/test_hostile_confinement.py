"""A worker of images taken over by a stranger's bytes has nothing of the host but its descriptors."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.hostile.images.confined import (
    assert_apart,
    assert_without_rights,
    confined,
    confined_for_a_while,
    number_of,
    status_of,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has namespaces and ids to give")

FORBIDDEN = (
    *("socket", "socketpair", "clone", "fork", "execve", "kill", "tkill", "ptrace", "process_vm_readv"),
    *("unshare", "setns", "mount", "pivot_root", "chroot", "open_by_handle_at", "pidfd_open", "pidfd_getfd"),
    *(
        "setuid",
        "capset",
        "seccomp",
        "bpf",
        "keyctl",
        "add_key",
        "io_uring_setup",
        "userfaultfd",
        "memfd_create",
    ),
    *("perf_event_open", "shmget", "msgget", "inotify_init1", "sendmsg", "personality"),
)


def test_a_worker_has_no_right_and_sees_an_empty_directory() -> None:
    with confined_for_a_while() as pid:
        assert_without_rights(pid)
        assert_apart(pid)
        assert os.listdir(f"/proc/{pid}/root") == []
        assert len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines()) == 1
        # The pipe to the test, and nothing as standard streams.
        handles = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
        assert {one.partition(":")[0] for one in handles} == {"/dev/null", "pipe"}


def test_workers_have_users_of_their_own() -> None:
    with confined_for_a_while() as one, confined_for_a_while() as other:
        assert status_of(one)["Uid"] != status_of(other)["Uid"]


@pytest.mark.parametrize("path", ["/", "/etc/passwd", "/proc/self/maps", "/dev/null", "/root", "."])
def test_a_worker_opens_no_name(path: str) -> None:
    assert confined(f"def act(): os.open({path!r}, os.O_RDONLY)").said == "ENOENT"


@pytest.mark.parametrize("call", FORBIDDEN)
def test_a_forbidden_system_call_kills_the_worker(call: str) -> None:
    ended = confined(f"def act(): libc.syscall({number_of(call)}, 0, 0, 0, 0, 0, 0)")
    assert ended == (None, -signal.SIGSYS)


def test_a_worker_loads_no_new_code() -> None:
    prot = "mmap.PROT_READ | mmap.PROT_EXEC"
    assert confined(f"def act(): mmap.mmap(-1, 4096, prot={prot})") == (None, -signal.SIGSYS)


def test_a_worker_signals_neither_the_daemon_nor_another_worker() -> None:
    """The filter passes only the signal for abort(3), which the worker's user may only send to itself."""
    number, abort = number_of("tgkill"), int(signal.SIGABRT)
    with confined_for_a_while() as other:
        for pid in (os.getpid(), other):
            assert confined(f"def act(): return libc.syscall({number}, {pid}, {pid}, {abort})") == (-1, 0)
        assert status_of(other)["State"][0] != "Z"


def test_an_aborted_worker_ends_by_abort() -> None:
    assert confined("def act(): os.abort()").status == -signal.SIGABRT


def test_a_worker_takes_few_descriptors_of_its_own() -> None:
    assert confined("def act(): [os.dup(0) for _ in range(32)]").said == "EMFILE"


def test_a_worker_for_registries_connects_and_sees_certificates_and_names_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        answer = threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"))
        answer.start()
        code = f"""
def look():
    found.extend(socket.getaddrinfo("localhost", {port}, socket.AF_INET, socket.SOCK_STREAM))

def act():
    asking = threading.Thread(target=look)
    asking.start()
    asking.join()
    with socket.create_connection(found[0][4]) as connection:
        said = connection.recv(5).decode()
    authorities = ssl.create_default_context().get_ca_certs()
    return said, os.listdir("/"), os.listdir("/etc"), len(authorities)

found = []
"""
        ended = confined(code, network=True)
        answer.join()
    assert isinstance(ended.said, list)
    said, top, etc, authorities = ended.said
    assert (said, ended.status) == ("hello", 0)
    assert set(top) <= {"etc", "run", "usr"}
    assert set(etc) <= {"resolv.conf", "hosts", "host.conf", "gai.conf", "nsswitch.conf", "ssl", "pki"}
    assert authorities == 0 or authorities > 10


def test_a_worker_for_registries_has_no_other_right() -> None:
    with confined_for_a_while(network=True) as pid:
        assert_without_rights(pid)
        assert_apart(pid, network=True)
    for family in ("AF_UNIX", "AF_NETLINK"):
        assert confined(f"def act(): socket.socket(socket.{family})", network=True).said == "EAFNOSUPPORT"
    for act in (
        "socket.socket(socket.AF_PACKET)",
        "os.fork()",
        "open('/run/x', 'w')",
        "os.kill(os.getppid(), 9)",
    ):
        assert confined(f"def act(): {act}", network=True) == (None, -signal.SIGSYS), act
    raw = "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)"
    assert confined(f"def act(): {raw}", network=True).said == "EPERM"
