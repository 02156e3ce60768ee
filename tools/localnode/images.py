"""Images pushed to a registry by the OCI distribution API (https://github.com/opencontainers/distribution-spec)."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import requests

from tools.localnode import layers

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TIMEOUT_SECONDS = 60
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class PushedImage:
    """An image to push: uncompressed layers and the ``config`` part of an OCI image configuration."""

    layers: Sequence[bytes]
    config: Mapping[str, object] = field(default_factory=dict)


def busybox() -> PushedImage:
    """Debian's busybox; ``sh`` by default."""
    return PushedImage([layers.busybox()], {"Cmd": ["sh"]})


def push(registry: str, name: str, image: PushedImage) -> str:
    """Push to ``registry`` (``127.0.0.1:5000``) as ``name`` (``demo/busybox:1``): the manifest's digest."""
    blobs = [gzip.compress(layer, 6, mtime=0) for layer in image.layers]
    return push_packed(registry, name, blobs, [digest(layer) for layer in image.layers], image.config)


def push_packed(
    registry: str, name: str, blobs: Sequence[bytes], diff_ids: Sequence[str], run: Mapping[str, object]
) -> str:
    """Push gzip-compressed layers; ``diff_ids`` are the digests of their tars."""
    repository, _, tag = name.partition(":")
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES[os.uname().machine],  # busybox is this machine's
            "os": "linux",
            "config": {"Env": [_PATH], **run},
            "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        },
        sort_keys=True,
    ).encode()
    base = f"http://{registry}/v2/{repository}"
    with requests.Session() as session:
        for blob in (*blobs, config):
            _push_blob(session, base, blob)
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": _descriptor(CONFIG, config),
                "layers": [_descriptor(LAYER, blob) for blob in blobs],
            }
        ).encode()
        answer = session.put(
            f"{base}/manifests/{tag or 'latest'}",
            data=manifest,
            headers={"Content-Type": MANIFEST},
            timeout=_TIMEOUT_SECONDS,
        )
        answer.raise_for_status()
    return digest(manifest)


def digest(data: bytes) -> str:
    """The digest of bytes: ``sha256:<hex>``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def _push_blob(session: requests.Session, base: str, blob: bytes) -> None:
    name = digest(blob)
    if session.head(f"{base}/blobs/{name}", timeout=_TIMEOUT_SECONDS).status_code == requests.codes.ok:
        return
    begun = session.post(f"{base}/blobs/uploads/", timeout=_TIMEOUT_SECONDS)
    begun.raise_for_status()
    done = session.put(
        begun.headers["Location"],
        params={"digest": name},
        data=blob,
        headers={"Content-Type": "application/octet-stream"},
        timeout=_TIMEOUT_SECONDS,
    )
    done.raise_for_status()
