#!/usr/bin/env python3
"""Make a kernel image, an OCI archive for `protect image import`, of a kernel that is installed here.

Its one layer has /kernel/image, /kernel/config.gz, /kernel/metadata, and /kernel/initramfs with the modules
that a zone needs; with --addons also /kernel/addons.squashfs, with all modules (squashfs-tools-ng).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import platform
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import initramfs

_OCI = "application/vnd.oci.image."
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def digest(data: bytes) -> str:
    """Return a digest in OCI's format."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def put(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file of root's with time 0: the same files always make the same image."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    archive.addfile(member, io.BytesIO(data))


def layer(files: dict[str, bytes]) -> bytes:
    """Return a tar with the files in /kernel."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo("kernel")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        for name, data in files.items():
            put(archive, f"kernel/{name}", data)
    return buffer.getvalue()


def kernel_files(version: str, flavor: str, addons: bool, scratch: Path) -> dict[str, bytes]:
    """Return the files for /kernel, by name."""
    modules = initramfs.installed(version)
    config = Path(f"/boot/config-{version}").read_bytes()
    early = scratch / "early.cpio"
    initramfs.write(None, modules, early, (*initramfs.MODULES, *initramfs.optional(modules)))
    said = {
        "ARCH": platform.machine(),
        "VERSION": version,
        "FLAVOR": flavor,
        "CONFIG": digest(config),
    }
    files = {
        "image": Path(f"/boot/vmlinuz-{version}").read_bytes(),
        "config.gz": gzip.compress(config, mtime=0),
        "metadata": "".join(f"KERNEL_{key}={value}\n" for key, value in said.items()).encode(),
        "initramfs": early.read_bytes(),
    }
    if addons:
        squashfs(modules, scratch / "addons.squashfs")
        files["addons.squashfs"] = (scratch / "addons.squashfs").read_bytes()
    return files


def squashfs(modules: Path, output: Path) -> None:
    """Pack the modules as modules/, without links to the kernel's source; gzip: every kernel reads it."""
    pack = [
        *("tar", "-C", str(modules), "-c", "--sort=name", "--mtime=@0", "--owner=0", "--group=0"),
        *("--exclude=./build", "--exclude=./source", "--transform=s,^[.],modules,S", "."),
    ]
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as tar:
        made = subprocess.run(
            ["tar2sqfs", "-q", "-f", "-c", "gzip", str(output)], stdin=tar.stdout, check=False
        )
    if tar.returncode or made.returncode:
        raise SystemExit(f"kernelimage: tar ended with {tar.returncode}, tar2sqfs with {made.returncode}")


def descriptor(kind: str, data: bytes) -> dict[str, Any]:
    """Return the descriptor of a blob."""
    return {"mediaType": _OCI + kind, "digest": digest(data), "size": len(data)}


def write(files: dict[str, bytes], name: str, output: Path) -> None:
    """Write the archive: layer, configuration, manifest, index."""
    plain = layer(files)
    packed = gzip.compress(plain, 6, mtime=0)
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [digest(plain)]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}manifest.v1+json",
            "config": descriptor("config.v1+json", config),
            "layers": [descriptor("layer.v1.tar+gzip", packed)],
        }
    ).encode()
    named = descriptor("manifest.v1+json", manifest)
    named["annotations"] = {"org.opencontainers.image.ref.name": name}
    draft = output.with_suffix(".new")
    with tarfile.open(draft, "w") as archive:
        put(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        put(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [named]}).encode())
        for blob in (packed, config, manifest):
            put(archive, f"blobs/sha256/{digest(blob).partition(':')[2]}", blob)
    draft.rename(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", required=True, help="a version below /lib/modules")
    parser.add_argument("--flavor", default="zone")
    parser.add_argument("--addons", action="store_true", help="all of its modules too")
    parser.add_argument("--name", help="of the image; default: localhost/kernel:VERSION")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        files = kernel_files(options.kernel, options.flavor, options.addons, Path(scratch))
    write(files, options.name or f"localhost/kernel:{options.kernel}", options.output)


if __name__ == "__main__":
    main()
