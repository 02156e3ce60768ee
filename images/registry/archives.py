"""Images on this host as a source: OCI layouts (directory or tar archive), and ``docker save`` archives.

Sources: OCI image-spec, image-layout.md; Docker image spec v1.2, "Combined Image JSON + Filesystem Changeset
Format".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemonkit.faults import Invalid, Missing
from images.bounds.cancel import CancelToken
from images.bounds.limits import ImageLimits
from images.image_errors import Corrupt, oversized
from images.registry import manifests
from images.registry.archive_files import DirectoryFiles, Files, archive_files
from images.registry.manifests import Descriptor
from images.registry.sources import GivenManifest


@dataclass(frozen=True)
class ListedImage:
    """An image in a layout, with its name in the layout ("": none)."""

    target: Descriptor
    name: str


class ImageLayout:
    """A layout as an ImageSource; finds blobs by digest."""

    resolves = True

    def __init__(self, files: Files, limits: ImageLimits) -> None:
        self._files = files
        self._limits = limits
        self.name = files.subject
        # Blobs at other paths than their digest says: docker save names files freely.
        self._elsewhere: dict[str, str] = {}
        self._made: dict[str, bytes] = {}

    def images(self) -> list[ListedImage]:
        """List the images in the layout; raises Invalid if the files are no layout."""
        if self._files.size("index.json") is not None:
            document = manifests.parse_json(self.read("index.json"), f"index.json of {self.name}")
            entries = manifests.index_entries(document, self.name)
            return [ListedImage(entry, _layout_name(entry)) for entry in entries]
        if self._files.size("manifest.json") is not None:
            return self._docker_images()
        raise Invalid(
            "import", self.name, "is no OCI layout (no index.json) and no docker archive (no manifest.json)"
        )

    def read(self, name: str) -> bytes:
        """Read a whole small file."""
        size = self._files.size(name)
        if size is not None and size > self._limits.manifest_bytes:
            cause = f"{name} is larger than {self._limits.manifest_bytes} bytes"
            raise oversized("import", self.name, cause, "manifest_bytes")
        return b"".join(self._files.chunks(name))

    def manifest(self, target: str, most: int, token: CancelToken) -> GivenManifest:
        """See ImageSource."""
        if target in self._made:
            return GivenManifest(self._made[target], manifests.DOCKER_MANIFEST)
        return GivenManifest(self.read(self._path(target)))

    @contextmanager
    def blob(self, descriptor: Descriptor, token: CancelToken, begin: int = 0) -> Iterator[Iterator[bytes]]:
        """See ImageSource."""
        yield _skipping(self._files.chunks(self._path(descriptor.digest)), begin)

    def _path(self, digest: str) -> str:
        algorithm, _, value = digest.partition(":")
        return self._elsewhere.get(digest, f"blobs/{algorithm}/{value}")

    def _docker_images(self) -> list[ListedImage]:
        try:
            listed = json.loads(self.read("manifest.json"))
        except (ValueError, RecursionError) as error:
            raise Corrupt("import", self.name, f"manifest.json is not JSON: {error}") from error
        found: list[ListedImage] = []
        for item in listed if isinstance(listed, list) else []:
            if not isinstance(item, dict):
                raise Corrupt("import", self.name, "manifest.json is not a list of objects")
            found += self._docker_image(item)
        return found

    def _docker_image(self, item: dict[str, Any]) -> list[ListedImage]:
        config, layers, tags = item.get("Config"), item.get("Layers") or [], item.get("RepoTags") or []
        texts = [config, *layers, *tags] if isinstance(layers, list) and isinstance(tags, list) else [None]
        if not all(isinstance(text, str) for text in texts) or len(layers) > self._limits.layers:
            raise Corrupt("import", self.name, "manifest.json is not what docker save writes")
        document = {
            "schemaVersion": 2,
            "mediaType": manifests.DOCKER_MANIFEST,
            "config": self._describe(str(config), manifests.DOCKER_CONFIG),
            "layers": [
                self._describe(layer, "application/vnd.docker.image.rootfs.diff.tar") for layer in layers
            ],
        }
        data = json.dumps(document).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self._made[digest] = data
        target = Descriptor(manifests.DOCKER_MANIFEST, digest, len(data))
        return [ListedImage(target, tag) for tag in tags] or [ListedImage(target, "")]

    def _describe(self, name: str, media_type: str) -> dict[str, Any]:
        """The descriptor of a file listed without one."""
        running = hashlib.sha256()
        size = 0
        for chunk in self._files.chunks(name):
            running.update(chunk)
            size += len(chunk)
        digest = f"sha256:{running.hexdigest()}"
        self._elsewhere[digest] = name
        return {"mediaType": media_type, "digest": digest, "size": size}


def _layout_name(entry: Descriptor) -> str:
    full = entry.annotation("io.containerd.image.name")
    short = entry.annotation("org.opencontainers.image.ref.name")
    # A bare tag is no name on its own.
    return full or (short if "/" in short or ":" in short else "")


def open_layout(path: Path, limits: ImageLimits, work: Path, token: CancelToken) -> ImageLayout:
    """The layout at a path of this host; raises Missing and Invalid.

    work: path for unpacking a compressed archive; the caller removes the file after the last read.
    """
    if path.is_dir():
        return ImageLayout(DirectoryFiles(path), limits)
    if not path.is_file():
        raise Missing("import", str(path), "there is no such file or directory")
    return ImageLayout(archive_files(path, limits, work, token), limits)


def _skipping(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    for chunk in chunks:
        if size < len(chunk):
            yield chunk[size:]
        size = max(0, size - len(chunk))
