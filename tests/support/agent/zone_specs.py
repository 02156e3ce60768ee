"""Small containers for tests of zones: OCI configurations and CreateContainer requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from xenpod_proto.channel.v1 import channel_pb2 as pb

CAPABILITIES = ["CAP_CHOWN", "CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_DAC_OVERRIDE", "CAP_FOWNER"]


def process_json(*args: str, tty: bool = False, user: int = 0) -> dict[str, object]:
    return {
        "terminal": tty,
        "user": {"uid": user, "gid": user},
        "args": list(args),
        "env": ["PATH=/bin", "TERM=xterm"],
        "cwd": "/",
        "capabilities": {
            kind: CAPABILITIES for kind in ("bounding", "effective", "permitted", "inheritable")
        },
    }


def config_json(
    container: str,
    *args: str,
    tty: bool = False,
    memory: int = 0,
    shared_pids: bool = False,
    user_namespace: bool = False,
    user: int = 0,
    readonly: bool = False,
    mounts: Sequence[dict[str, object]] = (),
    unified: Mapping[str, str] | None = None,
) -> bytes:
    namespaces = [{"type": kind} for kind in ("pid", "ipc", "mount", "cgroup")]
    if user_namespace:
        namespaces.append({"type": "user", "path": "/run/xenpod/ns/user"})
    config: dict[str, object] = {
        "ociVersion": "1.0.2",
        "process": process_json(*args, tty=tty, user=user),
        "root": {"path": "rootfs", "readonly": readonly},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {
                "destination": "/dev/pts",
                "type": "devpts",
                "source": "devpts",
                "options": ["newinstance", "ptmxmode=0666", "mode=0620"],
            },
            {
                "destination": "/etc/resolv.conf",
                "type": "bind",
                "source": "files/resolv.conf",
                "options": ["bind", "ro"],
            },
            *mounts,
        ],
        "linux": {
            "cgroupsPath": f"/workloads/{container}",
            "namespaces": [n for n in namespaces if not (shared_pids and n["type"] == "pid")],
            "resources": ({"memory": {"limit": memory}} if memory else {})
            | ({"unified": dict(unified)} if unified else {}),
        },
    }
    return json.dumps(config).encode()


def stack(*disks: str, type: str = "squashfs") -> list[pb.Filesystem]:
    """A stack of file systems, lowest first."""
    return [pb.Filesystem(disk=disk, type=type) for disk in disks]


def creation(
    container: str,
    *args: str,
    tty: bool = False,
    stdin: bool = False,
    memory: int = 0,
    shared_pids: bool = False,
    disk: str = "xvda",
    **more: Any,
) -> pb.CreateContainer:
    return pb.CreateContainer(
        id=container,
        config_json=config_json(container, *args, tty=tty, memory=memory, shared_pids=shared_pids, **more),
        rootfs=stack(disk),
        tty=tty,
        stdin=stdin,
        files=[pb.File(name="resolv.conf", mode=0o644, content=b"nameserver 192.0.2.53\n")],
    )
