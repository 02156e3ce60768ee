"""Small deterministic images: layers of any shape, OCI layouts, and trees to be compared."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zstandard

from images.registry.facts import ImageFacts, ManifestFacts, document, known_part, pack_image
from images.registry.manifests import (
    OCI_CONFIG,
    OCI_MANIFEST,
    Descriptor,
    ImageConfig,
    Manifest,
    Platform,
)

OCI = "application/vnd.oci.image."
MTIME = 1_600_000_000
ARCHITECTURE = "amd64"


def digest(data: bytes) -> str:
    """The sha256 digest in a registry's form."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Layer:
    """A tar layer, entry by entry; names may be anything, also what no tool would write."""

    def __init__(self, tar_format: int = tarfile.PAX_FORMAT) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(
            fileobj=self._buffer, mode="w", format=tar_format, encoding="utf-8", errors="surrogateescape"
        )

    def add(self, name: str, kind: bytes, data: bytes = b"", **fields: Any) -> Layer:
        """Any entry; xattrs: names to bytes; further fields are TarInfo's."""
        info = tarfile.TarInfo(name)
        info.type, info.mtime, info.mode = kind, MTIME, 0o644
        info.size = len(data)
        xattrs: Mapping[str, bytes] = fields.pop("xattrs", {})
        headers: dict[str, str] = {}
        for key, value in xattrs.items():
            headers[f"SCHILY.xattr.{key}"] = value.decode("utf-8", "surrogateescape")
        info.pax_headers = headers
        for key, value in fields.items():
            setattr(info, key, value)
        self._tar.addfile(info, io.BytesIO(data))
        return self

    def file(self, name: str, data: bytes = b"", **fields: Any) -> Layer:
        """A regular file."""
        return self.add(name, tarfile.REGTYPE, data, **fields)

    def dir(self, name: str, **fields: Any) -> Layer:
        """A directory."""
        return self.add(name, tarfile.DIRTYPE, mode=fields.pop("mode", 0o755), **fields)

    def symlink(self, name: str, target: str, **fields: Any) -> Layer:
        """A symbolic link."""
        return self.add(name, tarfile.SYMTYPE, linkname=target, mode=0o777, **fields)

    def link(self, name: str, target: str, **fields: Any) -> Layer:
        """A hard link."""
        return self.add(name, tarfile.LNKTYPE, linkname=target, **fields)

    def raw(self, data: bytes) -> Layer:
        """The bytes, in whole blocks."""
        self._buffer.write(data)
        self._tar.offset += len(data)
        return self

    def tar(self) -> bytes:
        """The finished archive."""
        self._tar.close()
        return self._buffer.getvalue()


@dataclass(frozen=True)
class Blob:
    """A layer in a registry's form."""

    data: bytes
    diff_id: str
    media_type: str

    @property
    def descriptor(self) -> dict[str, Any]:
        """The layer's descriptor in a manifest."""
        return {"mediaType": self.media_type, "digest": digest(self.data), "size": len(self.data)}


def packed(tar: bytes, how: str = "gzip") -> Blob:
    """A layer compressed: gzip, zstd or "" (not)."""
    data = {"gzip": lambda: gzip.compress(tar, 1, mtime=0), "zstd": lambda: zstandard.compress(tar, 1)}.get(
        how, lambda: tar
    )()
    return Blob(data, digest(tar), f"{OCI}layer.v1.tar" + (f"+{how}" if how else ""))


@dataclass(frozen=True)
class BuiltImage:
    """An image whole in memory: manifest, configuration and layers as bytes."""

    layers: tuple[Blob, ...]
    config: bytes
    manifest: bytes
    blobs: Mapping[str, bytes] = field(repr=False)

    @property
    def id(self) -> str:
        """The configuration's digest."""
        return digest(self.config)

    @property
    def descriptor(self) -> dict[str, Any]:
        """The image's descriptor in an index."""
        return {
            "mediaType": f"{OCI}manifest.v1+json",
            "digest": digest(self.manifest),
            "size": len(self.manifest),
            "platform": {"os": "linux", "architecture": ARCHITECTURE},
        }


def build(layers: Sequence[Blob | bytes], run: Mapping[str, Any] | None = None, **config: Any) -> BuiltImage:
    """An image of layers (plain tars are packed with gzip); run: its config's "config"."""
    blobs = tuple(layer if isinstance(layer, Blob) else packed(layer) for layer in layers)
    document = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": dict(run or {}),
        "rootfs": {"type": "layers", "diff_ids": [blob.diff_id for blob in blobs]},
    } | config
    config_bytes = json.dumps(document).encode()
    config_descriptor = {
        "mediaType": f"{OCI}config.v1+json",
        "digest": digest(config_bytes),
        "size": len(config_bytes),
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}manifest.v1+json",
        "config": config_descriptor,
        "layers": [blob.descriptor for blob in blobs],
    }
    data = json.dumps(manifest).encode()
    kept = {digest(blob.data): blob.data for blob in blobs}
    return BuiltImage(blobs, config_bytes, data, kept | {digest(config_bytes): config_bytes})


def index_of(descriptors: Iterable[Mapping[str, Any]]) -> bytes:
    """An OCI index."""
    document = {"schemaVersion": 2, "mediaType": f"{OCI}index.v1+json", "manifests": list(descriptors)}
    return json.dumps(document).encode()


def write_layout(root: Path, image: BuiltImage, ref: str = "latest") -> Path:
    """An OCI layout with a single image."""
    blobs = root / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for name, data in {**image.blobs, digest(image.manifest): image.manifest}.items():
        (blobs / name.partition(":")[2]).write_bytes(data)
    (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    named = image.descriptor | {"annotations": {"org.opencontainers.image.ref.name": ref}}
    (root / "index.json").write_bytes(index_of([named]))
    return root


def busybox() -> bytes:
    """A layer that runs: this machine's busybox (Debian's package) with its libraries and a few accounts."""
    program = Path(shutil.which("busybox") or "/bin/busybox").resolve()
    layer = Layer()
    for name in ("bin", "etc", "lib", "lib64", "proc", "sys", "dev", "root", "usr", "var"):
        layer.dir(name)
    layer.dir("tmp", mode=0o1777)
    layer.file("bin/busybox", program.read_bytes(), mode=0o755)
    for library in _libraries(program):
        layer.file(library.lstrip("/"), Path(library).resolve().read_bytes(), mode=0o755)
    for applet in (
        "sh",
        "cat",
        "ls",
        "id",
        "sleep",
        "echo",
        "ip",
        "wget",
        "nc",
        "ping",
        "stat",
        "true",
        "false",
    ):
        layer.link(f"bin/{applet}", "bin/busybox")
    layer.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/false\n")
    layer.file("etc/group", b"root:x:0:\nwww-data:x:33:\n")
    return layer.tar()


def _libraries(program: Path) -> list[str]:
    found = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return sorted({word for line in found.splitlines() for word in line.split() if word.startswith("/")})


@dataclass(frozen=True)
class Seen:
    """A path of a tree, as far as any filesystem can show the path.

    same: the first path of the same inode.
    """

    kind: str
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int
    target: bytes
    device: int
    content: str
    xattrs: tuple[tuple[str, bytes], ...]
    same: bytes = b""


def seen(root: Path) -> dict[bytes, Seen]:
    """Every path below a directory (relative) and the directory itself (b".")."""
    top = os.fsencode(root)
    # Filesystems of an overlay have their own numbers.
    inodes: dict[bytes, tuple[int, int]] = {}
    tree: dict[bytes, Seen] = {}
    pending = [b"."]
    while pending:
        name = pending.pop()
        path = os.path.join(top, name)
        status = os.lstat(path)
        inodes[name] = (status.st_dev, status.st_ino)
        tree[name] = _look(path, status)
        if stat.S_ISDIR(status.st_mode):
            pending += [os.path.join(name, below) if name != b"." else below for below in os.listdir(path)]
    first: dict[tuple[int, int], bytes] = {}
    for name in sorted(tree):
        first.setdefault(inodes[name], name)
    return {name: replace(one, same=first[inodes[name]]) for name, one in tree.items()}


def _look(path: bytes, status: os.stat_result) -> Seen:
    kind = stat.filemode(status.st_mode)[0]
    content, target = "", b""
    if kind == "-":
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    elif kind == "l":
        target = os.readlink(path)
    return Seen(
        kind,
        stat.S_IMODE(status.st_mode),
        status.st_uid,
        status.st_gid,
        int(status.st_mtime),
        status.st_size if kind == "-" else 0,
        target,
        status.st_rdev if kind in "bc" else 0,
        content,
        _xattrs(path),
    )


def _xattrs(path: bytes) -> tuple[tuple[str, bytes], ...]:
    try:
        keys = sorted(os.listxattr(path, follow_symlinks=False))
    except OSError as error:
        # A squashfs without xattrs has no table of xattrs.
        if error.errno != errno.ENOTSUP:
            raise
        return ()
    return tuple((key, os.getxattr(path, key, follow_symlinks=False)) for key in keys)


def facts_of(run: dict[str, Any] | None = None) -> bytes:
    """The facts of an image without layers, for a store without pulls; run: the image's configuration."""
    platform = Platform("linux", "amd64")
    manifest = Manifest(Descriptor(OCI_CONFIG, "sha256:" + "0" * 64, 2), ())
    about, used = known_part({"config": run or {}})
    config = ImageConfig(platform, (), document(platform, (), about, used))
    return pack_image(ImageFacts(ManifestFacts(OCI_MANIFEST, manifest), config))
