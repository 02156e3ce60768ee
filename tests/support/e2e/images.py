"""The images that Kubernetes' e2e suite names (test/utils/image, 1.36).

Debian's packages and agnhost stand in for the upstream images.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.cluster.programs import VARIABLE, program
from tests.support.cri.critest_images import nnp, web
from tests.support.e2e.debian import debian_layer
from tools.localnode import images, layers
from tools.localnode.images import PushedImage
from tools.localnode.layers import LayerEntry

HOSTS = ("registry.k8s.io", "docker.io", "gcr.io")
"""The registries that the suite names; a mirror has their images by path alone."""

_PACKAGES = (
    *("bash", "coreutils", "grep", "sed", "hostname", "libc-bin", "procps", "util-linux"),
    *("bind9-dnsutils", "curl", "netcat-openbsd", "iproute2", "iputils-ping"),
)
_PASSWD = """root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
www-data:x:33:33:www-data:/var/www:/bin/false
user-defined-in-image:x:1000:1000::/home:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/false
"""
_GROUP = """root:x:0:
daemon:x:1:
www-data:x:33:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
nogroup:x:65534:
"""
# The suite compares error messages with those of busybox's shell.  Only bash passes on variables with names
# like data-1, which pods get from ConfigMaps.
_SHELL = r"""
#include <ctype.h>
#include <unistd.h>

static int odd(const char *variable)
{
	for (; *variable && *variable != '='; variable++)
		if (!isalnum((unsigned char)*variable) && *variable != '_')
			return 1;
	return 0;
}

int main(int argc, char **argv, char **environment)
{
	const char *shell = "/bin/busybox";
	(void)argc;
	for (; *environment; environment++)
		if (odd(*environment))
			shell = "/bin/bash";
	execv(shell, argv);
	return 127;
}
"""
# The package's scripts would make nc a link.
_NC = b'#!/bin/sh\nexec /bin/nc.openbsd "$@"\n'
# The sample API server's pod starts etcd with etcd's own flags; a program etcd3 takes a folder and two ports.
_ETCD = b"#!/bin/sh\nexec /usr/local/bin/etcd3 /tmp/etcd 2379 2380\n"


def every_image(folder: Path) -> Mapping[str, PushedImage]:
    """The images by ``path:tag``.  ``folder`` keeps packages and programs for the next run."""
    folder.mkdir(parents=True, exist_ok=True)
    small = [layers.busybox(), _shell(folder), _accounts()]
    large = [layers.busybox(), debian_layer(folder / "debian", _PACKAGES), _accounts()]
    agnhost = [*large, _agnhost(folder)]
    run, sh = {"Entrypoint": ["/agnhost"], "Cmd": ["pause"]}, {"Cmd": ["sh"]}
    pause = {"Entrypoint": ["/pause"], "User": "65535:65535", "WorkingDir": "/"}
    made = {
        **{f"agnhost:{tag}": _marked(tag, PushedImage(agnhost, run)) for tag in ("2.55", "2.63.0")},
        "busybox:1.37.0-1": PushedImage(small, sh),
        "glibc-dns-testing:2.0.0": PushedImage(large, sh),
        "ipc-utils:1.4": PushedImage(large, sh),
        **{f"{name}:1.8": _pet(name, agnhost) for name in ("kitten", "nautilus")},
        **{f"nginx:{tag}": _marked(tag, web(small, 80, "nginx")) for tag in ("1.15-4", "1.27-0")},
        "nonewprivs:1.4": PushedImage([*small, nnp(folder)], {"Entrypoint": ["/nnp"]}),
        "nonroot:1.5": PushedImage(small, {"Cmd": ["sh", "-c", "id -u; sleep 3600"], "User": "1234"}),
    }
    return {
        **{f"e2e-test-images/{name}": image for name, image in made.items()},
        **{f"pause:{tag}": PushedImage([layers.pause(folder)], pause) for tag in ("3.9", "3.10.2")},
        **_api_server(large),
    }


def push_every_image(registry: str, folder: Path) -> None:
    """Push the images to a registry; ``folder`` keeps packages and programs for the next run."""
    packed: dict[str, bytes] = {}
    for name, image in every_image(folder).items():
        diff_ids = [images.digest(layer) for layer in image.layers]
        for diff_id, layer in zip(diff_ids, image.layers, strict=True):
            if diff_id not in packed:
                packed[diff_id] = gzip.compress(layer, 1, mtime=0)
        images.push_packed(registry, name, [packed[one] for one in diff_ids], diff_ids, image.config)


def _marked(mark: str, image: PushedImage) -> PushedImage:
    """The image with an id of its own."""
    return PushedImage([*image.layers, layers.layer(LayerEntry(f"mark-{mark}", 0o644, b""))], image.config)


def _shell(folder: Path) -> bytes:
    """A program ``sh`` that becomes busybox's shell or bash, as the suite expects of either."""
    program, bash = folder / "sh", Path("/bin/bash")
    command = ["gcc", "-Os", "-static", "-s", "-Wl,--build-id=none", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=_SHELL.encode(), check=True)
    entries = [
        LayerEntry("bin/bash", content=bash.read_bytes()),
        LayerEntry("bin/sh", content=program.read_bytes()),
    ]
    for library in layers.libraries(bash):
        entries.append(LayerEntry(str(library).lstrip("/"), content=library.read_bytes()))
    return layers.layer(*entries)


def _accounts() -> bytes:
    return layers.layer(
        LayerEntry("etc/passwd", 0o644, _PASSWD.encode()),
        LayerEntry("etc/group", 0o644, _GROUP.encode()),
    )


def _agnhost(folder: Path) -> bytes:
    """The program, with the certificate of its TLS server."""
    key, certificate = folder / "localhost.key", folder / "localhost.crt"
    if not certificate.exists():
        asked = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=localhost"]
        subprocess.run(["openssl", "req", *asked, "-keyout", key, "-out", certificate], check=True)
    return layers.layer(
        LayerEntry("agnhost", content=Path(program("agnhost")).read_bytes()),
        LayerEntry("agnhost-2", target="agnhost"),
        LayerEntry("bin/nc", content=_NC),
        LayerEntry("localhost.crt", 0o644, certificate.read_bytes()),
        LayerEntry("localhost.key", 0o644, key.read_bytes()),
        LayerEntry("uploads"),
        LayerEntry("var/registry"),
    )


def _pet(name: str, base: list[bytes]) -> PushedImage:
    """A web server with one picture; the suite also mounts the image, and looks for Alpine's os-release."""
    files = {
        "data.json": json.dumps({"image": f"{name}.jpg"}),
        f"{name}.jpg": name,
        "etc/os-release": 'NAME="Alpine Linux"\n',
    }
    entries = [LayerEntry(path, 0o644, text.encode()) for path, text in files.items()]
    run = {"Entrypoint": ["/agnhost"], "Cmd": ["test-webserver"]}
    return PushedImage([*base, layers.layer(*entries)], run)


def _api_server(base: list[bytes]) -> dict[str, PushedImage]:
    """The sample API server and its etcd, if the folder of Kubernetes' programs has the server."""
    folder = Path(os.environ[VARIABLE])
    server, etcd, etcd3 = (folder / name for name in ("sample-apiserver", "etcd", "etcd3"))
    if not server.exists():
        return {}
    entries = [LayerEntry("usr/local/bin")]
    if etcd3.exists():
        entries.append(LayerEntry("usr/local/bin/etcd3", content=etcd3.read_bytes()))
        entries.append(LayerEntry("usr/local/bin/etcd", content=_ETCD))
    else:
        entries.append(LayerEntry("usr/local/bin/etcd", content=etcd.read_bytes()))
    own = layers.layer(LayerEntry("sample-apiserver", content=server.read_bytes()))
    return {
        "e2e-test-images/sample-apiserver:1.29.2": PushedImage(
            [*base, own], {"Entrypoint": ["/sample-apiserver"]}
        ),
        "etcd:3.6.8-0": PushedImage([*base, layers.layer(*entries)], {"Cmd": ["etcd"]}),
    }
