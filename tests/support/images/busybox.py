"""A root filesystem image with the host's own busybox, and OCI configurations for it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
APPLETS = (
    "sh",
    "true",
    "false",
    "echo",
    "cat",
    "sleep",
    "ls",
    "id",
    "seq",
    "kill",
    "stty",
    "tty",
    "head",
    "yes",
    "dd",
    "ip",
    "rm",
    "mkdir",
    "chmod",
    "mount",
    "umount",
    "stat",
    "touch",
    "nproc",
    "grep",
)
USERS = {"type": "user", "path": "/run/xenpod/ns/user"}
NAMESPACES = [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}]


def build(image: Path, scratch: Path) -> Path:
    """Write the image as squashfs; ``scratch`` is used and removed."""
    for name in ("bin", "proc", "sys", "dev", "tmp", "etc", "run"):
        (scratch / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, scratch / "bin/busybox")
    for applet in APPLETS:
        os.link(scratch / "bin/busybox", scratch / "bin" / applet)
    for library in libraries():
        target = scratch / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    subprocess.run(["mksquashfs", str(scratch), str(image), "-quiet", "-no-progress"], check=True)
    shutil.rmtree(scratch)
    return image


def libraries() -> list[str]:
    """Libraries of busybox; none for a static busybox."""
    needed = subprocess.run(["ldd", str(BUSYBOX)], check=False, capture_output=True, text=True).stdout
    return re.findall(r"(/\S+)", needed)


def process(*args: str, tty: bool = False) -> dict[str, object]:
    """An OCI process object."""
    return {
        "terminal": tty,
        "user": {"uid": 0, "gid": 0},
        "args": list(args),
        "env": ["PATH=/bin", "TERM=xterm"],
        "cwd": "/",
    }


def config(
    workload_id: str,
    args: Sequence[str],
    *,
    tty: bool = False,
    memory: int = 0,
    mounts: Sequence[Mapping[str, object]] = (),
    follows: bool = False,
    ids: Sequence[int] = (),
    devices: bool = False,
) -> bytes:
    """An OCI configuration; ``memory`` in bytes, 0 for no limit; ``mounts`` beside the usual mounts.

    ``follows``: later mounts of the zone reach the container. ``ids``: first id of the zone and length of the
    mapping of its user namespace, which the container joins. ``devices``: the container may use all devices.
    """
    resources: dict[str, object] = {"memory": {"limit": memory, "swap": memory}} if memory else {}
    if devices:
        resources["devices"] = [{"allow": True, "access": "rwm"}]
    return json.dumps(
        {
            "ociVersion": "1.0.2",
            "process": process(*args, tty=tty),
            "root": {"path": "rootfs", "readonly": False},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {
                    "destination": "/dev",
                    "type": "tmpfs",
                    "source": "tmpfs",
                    "options": ["nosuid", "mode=755"],
                },
                {"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["newinstance"]},
                *mounts,
            ],
            "linux": {
                "namespaces": [*NAMESPACES, *([USERS] if ids else [])],
                **{
                    f"{kind}Mappings": [{"containerID": 0, "hostID": ids[0], "size": ids[1]}]
                    for kind in ("uid", "gid")
                    if ids
                },
                "cgroupsPath": f"/workloads/{workload_id}",
                "resources": resources,
                **({"rootfsPropagation": "rslave"} if follows else {}),
            },
        }
    ).encode()


def bind(source: str, destination: str, *options: str) -> dict[str, object]:
    """A bind mount of an OCI configuration."""
    return {"destination": destination, "type": "bind", "source": source, "options": list(options)}
