"""Images as CRI's messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from cri.images.rootfs.stack import chain
from cri.images.store.catalogue import StoredImage
from xenpod_proto.cri.v1 import runtime_pb2

MAX_UID = 0x7FFFFFFF


def image_message(image: StoredImage) -> runtime_pb2.Image:
    """CRI's Image, with the user its containers run as: a number, or a name to be looked up in the image."""
    message = runtime_pb2.Image(
        id=image.id,
        repo_tags=image.repo_tags,
        repo_digests=image.repo_digests,
        size=image.size,
        pinned=image.pinned,
    )
    message.spec.image = image.id
    untrusted_user = image.run.get("User")
    user = untrusted_user.partition(":")[0] if isinstance(untrusted_user, str) else ""
    if user.isascii() and user.isdigit() and len(user) <= 10 and int(user) <= MAX_UID:
        message.uid.value = int(user)
    else:
        message.username = user[:256]
    return message


def verbose_info(image: StoredImage) -> dict[str, str]:
    """What ``crictl inspecti`` shows beside the status, in the shape containerd gives it."""
    pulled = datetime.fromtimestamp(image.pulled_at / 1e9, UTC).isoformat()
    info = {
        "chainID": chain(image.config["rootfs"]["diff_ids"]),
        "imageSpec": image.config,
        "manifestDigest": image.manifest_digest,
        "filesystems": [{"path": str(path), "type": image.fs_type} for path in image.stack],
        "pulledAt": pulled,
    }
    return {"info": json.dumps(info)}
