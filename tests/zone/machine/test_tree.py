"""The zone's root tree: crun's libraries, and the way to a zone's root."""

from __future__ import annotations

import ctypes
import errno
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.agent.zone import Zone


def _loaded(tree: Path) -> dict[str, Path]:
    """Libraries by name, as the loader in the tree finds them for crun."""
    command = ["chroot", str(tree), "/lib64/ld-linux-x86-64.so.2", "--list", "/usr/bin/crun"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: tree / path[1:] for name, path in re.findall(r"(\S+) => (/\S+)", listed)}


@pytest.mark.root
def test_crun_loads_little(root: Path) -> None:
    """Loading libsystemd and its libraries takes as long as all other work of a short command."""
    loaded = _loaded(root)
    assert {name.partition(".")[0] for name in loaded} <= {
        "libsystemd",
        "libseccomp",
        "libcap",
        "libyajl",
        "libc",
    }
    assert all(path.is_file() for path in loaded.values())


@pytest.mark.root
def test_libsystemd_stub_refuses_sd_notify(root: Path) -> None:
    path = _loaded(root)["libsystemd.so.0"]
    assert path.stat().st_size < 16384
    needed = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" not in needed
    # crun needs each of its functions, and the loader has just found all of them.
    assert ctypes.CDLL(str(path)).sd_notify(0, None) == -errno.ENOSYS


@pytest.mark.root
def test_mounts_of_the_host_may_be_shared(tmp_path: Path, parts: Path) -> None:
    """systemd shares all mounts: pivot_root(2) refuses a shared mount, and the tree's mount is a copy of a
    shared mount.
    """
    shared = ("unshare", "--mount", "--propagation", "shared")
    Zone(tmp_path, parts / "root", [], through=shared).destroy()
