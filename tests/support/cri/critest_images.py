"""Images under the names that critest asks for, made of Debian's busybox with our content."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tools.localnode import layers
from tools.localnode.images import PushedImage
from tools.localnode.layers import LayerEntry

HOSTS = ("registry.k8s.io", "k8s.gcr.io", "gcr.io", "public.ecr.aws")
"""The registries that the suite names; a mirror has their images by path alone."""

_E2E, _STAGING = "e2e-test-images", "k8s-staging-cri-tools"
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
_BUSYBOX_TAGS = ("1", "1-glibc", "1-musl", "1-uclibc", "1.35.0-glibc")
_PASSWD = """root:x:0:0:root:/root:/bin/sh
www-data:x:33:33:www-data:/var/www:/bin/false
default-user:x:1000:1000::/home:/bin/sh
nobody:x:65534:65534:nobody:/home:/bin/false
"""
_GROUP = """root:x:0:
www-data:x:33:
default-user:x:1000:
nogroup:x:65534:
group-defined-in-image:x:50000:default-user
"""
_ACCOUNTS = (
    LayerEntry("etc/passwd", 0o644, _PASSWD.encode()),
    LayerEntry("etc/group", 0o644, _GROUP.encode()),
)
# Debian's busybox lacks the suite's forms of these two commands.
_PGREP = b"""#!/bin/sh
found=1
for folder in /proc/[0-9]*; do
  read -r name 2>/dev/null <"$folder/comm" || continue
  case $name in *"$1"*) [ "${folder#/proc/}" = $$ ] || { echo "${folder#/proc/}"; found=0; } ;; esac
done
exit $found
"""
_IPCS = b"#!/bin/sh\nexec cat /proc/sysvipc/shm\n"
# Installed setuid root: the suite checks whether setuid has an effect.
_NNP = r"""
#include <stdio.h>
#include <unistd.h>
int main(void) { printf("Effective uid: %d\n", geteuid()); return 0; }
"""
_USERS = {
    "uid": "1002",
    "username": "www-data",
    "uid-group": "1003:1004",
    "username-group": "www-data:1004",
    "predefined-group": "1000",
}


def every_image(folder: Path) -> Mapping[str, PushedImage]:
    """The images by ``path:tag``; programs are compiled in ``folder``."""
    base = [layers.busybox(), layers.layer(*_ACCOUNTS, *_tools())]
    pause = [layers.pause(folder)]
    run = {"Cmd": ["sh"]}
    return {
        f"{_E2E}/busybox:1.29-2": PushedImage(base, run),
        **{f"docker/library/busybox:{tag}": _marked(base, tag) for tag in _BUSYBOX_TAGS},
        f"{_E2E}/nginx:1.14-2": web(base, 80, "nginx"),
        f"{_E2E}/httpd:2.4.39-4": web(base, 80, "httpd"),
        f"{_STAGING}/hostnet-nginx-{_ARCHITECTURE}:latest": web(base, 12003, "nginx"),
        f"{_E2E}/nonewprivs:1.3": PushedImage([*base, nnp(folder)], {"Entrypoint": ["/nnp"]}),
        "pause:3.9": PushedImage(pause, {"Entrypoint": ["/pause"], "User": "65535:65535"}),
        **{
            f"{_STAGING}/test-image-{'' if name.startswith('predefined') else 'user-'}{name}:latest":
            PushedImage(base, run | {"User": user})
            for name, user in _USERS.items()
        },
        **{
            f"{_STAGING}/test-image-{name}:latest": _marked(base, name)
            for name in ("1", "2", "3", "latest", "digest")
        },
        **{f"{_STAGING}/test-image-tag:{tag}": _marked(base, tag) for tag in ("test", "all")},
        **{f"{_STAGING}/test-image-tags:{tag}": _marked(base, "tags") for tag in ("1", "2", "3")},
    }  # fmt: skip


def _marked(base: list[bytes], mark: str) -> PushedImage:
    """An image with an id of its own."""
    return PushedImage([*base, layers.layer(LayerEntry(f"mark-{mark}", 0o644, b""))], {"Cmd": ["sh"]})


def _tools() -> list[LayerEntry]:
    return [
        LayerEntry("usr/bin/pgrep", 0o755, _PGREP),
        LayerEntry("bin/ipcs", 0o755, _IPCS),
        LayerEntry("home"),
        LayerEntry("usr/sbin"),
        LayerEntry("www"),
    ]


def web(base: list[bytes], port: int, name: str) -> PushedImage:
    # The suite looks for a process of this name, as a script's process has, and for nginx's file and title.
    script = f"""#!/bin/sh
echo {name}: serving on port {port}
mkdir -p /var/run
echo $$ >/var/run/{name}.pid
trap 'exit 0' TERM
/bin/busybox httpd -f -vv -p {port} -h /www &
wait
"""
    page = layers.layer(
        LayerEntry("www/index.html", 0o644, f"<html>{name}</html>\n".encode()),
        LayerEntry(f"usr/sbin/{name}", 0o755, script.encode()),
    )
    return PushedImage(
        [*base, page], {"Cmd": [f"/usr/sbin/{name}", "master process"], "ExposedPorts": {f"{port}/tcp": {}}}
    )


def nnp(folder: Path) -> bytes:
    program = folder / "nnp"
    subprocess.run(
        ["gcc", "-Os", "-static", "-s", "-x", "c", "-", "-o", program], input=_NNP.encode(), check=True
    )
    return layers.layer(LayerEntry("nnp", 0o4755, program.read_bytes()))
