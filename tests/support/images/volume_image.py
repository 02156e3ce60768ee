"""A hostile image for volumes."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

from tests.support.agent.zone_image import busybox_squashfs

NET_RAW_CAPABLE = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
"""security.capability, version 2: CAP_NET_RAW, effective and permitted (linux/capability.h)."""

OPTIONS = "a,upperdir=:b\\"
"""A directory's name with the characters that mount options give a meaning."""


def volume_squashfs(base: Path) -> Path:
    """Files, links within the volume and out of the volume, and special files."""
    tree = base / "tree"
    (tree / "data/deep").mkdir(parents=True)
    (tree / "data/file").write_text("a file\n")
    (tree / "data/deep/er").write_text("deeper\n")
    for name, target in {
        "absolute": "/data/deep",
        "climbing": "../../../../data",
        "outside": "/run/xenpod",
        "magic": "/proc/self/root",
        "endless": "endless",
        "data/sideways": "../../data/file",
    }.items():
        (tree / name).symlink_to(target)
    os.mkfifo(tree / "fifo")
    os.mknod(tree / "null", 0o020666, os.makedev(1, 3))
    shutil.copy(shutil.which("busybox") or "", tree / "data/echo")
    return _squashed(tree, base)


def owned_squashfs(base: Path) -> Path:
    """Busybox and its applets, with files of several owners; ids are root's where nothing else is said."""
    busybox_squashfs(base)
    tree = base / "tree"
    for name, owner, group, mode in (
        ("usual", 1000, 100, 0o640),
        ("last", 65535, 65535, 0o644),
        ("beyond", 65536, 70000, 0o644),
        ("setuid", 0, 0, 0o4755),
        ("setgid", 7, 8, 0o2755),
    ):
        path = tree / name
        path.write_text(f"{name}\n")
        os.chown(path, owner, group)
        path.chmod(mode)
    capable = tree / "capable/cat"
    capable.parent.mkdir()
    shutil.copy(tree / "bin/busybox", capable)
    os.chown(capable, 3, 4)
    os.setxattr(capable, "security.capability", NET_RAW_CAPABLE)
    (tree / "sticky").mkdir()
    os.chown(tree / "sticky", 5, 6)
    (tree / "sticky").chmod(0o3775)
    (tree / "sticky/link").symlink_to("/nowhere")
    os.chown(tree / "sticky/link", 9, 10, follow_symlinks=False)
    os.link(tree / "usual", tree / "sticky/usual")
    os.mknod(tree / "node", 0o020600, os.makedev(1, 5))
    return _squashed(tree, base)


def _squashed(tree: Path, base: Path) -> Path:
    out = base / "image.squashfs"
    out.unlink(missing_ok=True)
    subprocess.run(["mksquashfs", str(tree), str(out), "-quiet", "-no-progress"], check=True)
    return out


def anonymous_squashfs(base: Path) -> Path:
    """Busybox, and directories that an image may name as VOLUME."""
    busybox_squashfs(base)
    tree = base / "tree"
    (tree / "data/deep").mkdir(parents=True)
    (tree / "data/seed").write_text("seed\n")
    (tree / "data/deep/er").write_text("deeper\n")
    for path, mode in (("data", 0o750), ("data/seed", 0o640), ("data/deep", 0o2770)):
        os.chown(tree / path, 1000, 1001)
        (tree / path).chmod(mode)
    (tree / "empty").mkdir()
    os.chown(tree / "empty", 7, 8)
    (tree / "empty").chmod(0o1700)
    (tree / OPTIONS).mkdir()
    (tree / OPTIONS / "file").write_text("a name\n")
    (tree / "plain").write_text("a file\n")
    links = {"link": "/data", "up": "../../../empty", "nowhere": "/later/made", "endless": "endless"}
    for name, target in links.items():
        (tree / name).symlink_to(target)
    return _squashed(tree, base)
