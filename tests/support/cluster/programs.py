"""Kubernetes' own programs, from the folder in XENPOD_KUBERNETES."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.localnode.processes import ProgramFailed

VARIABLE = "XENPOD_KUBERNETES"

needs_kubernetes = pytest.mark.skipif(
    not os.environ.get(VARIABLE), reason="XENPOD_KUBERNETES names no folder with Kubernetes' programs"
)


def program(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """The path of a program.  ProgramFailed: the folder does not have it."""
    path = Path(environment[VARIABLE]) / name
    if not os.access(path, os.X_OK):
        raise ProgramFailed(f"{VARIABLE} names a folder without {name}: there is no program {path}")
    return str(path)


def etcd(folder: Path, clients: int, peers: int, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The command of an etcd with one member; the data is in ``folder``, on two ports of loopback.

    A program ``etcd3 FOLDER CLIENTS PEERS``, with etcd as a library, is preferred to ``etcd``.
    """
    if os.access(Path(environment[VARIABLE]) / "etcd3", os.X_OK):
        return [program("etcd3", environment), str(folder), str(clients), str(peers)]
    at, beside = f"http://127.0.0.1:{clients}", f"http://127.0.0.1:{peers}"
    return [
        program("etcd", environment),
        *("--name=one", f"--data-dir={folder}", "--unsafe-no-fsync"),
        *(f"--listen-client-urls={at}", f"--advertise-client-urls={at}"),
        *(f"--listen-peer-urls={beside}", f"--initial-advertise-peer-urls={beside}"),
        f"--initial-cluster=one={beside}",
    ]


def free_ports(count: int) -> list[int]:
    """Unused ports of loopback, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
