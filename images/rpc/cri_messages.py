"""Makes CRI's messages about images, and reads credentials from CRI's messages."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime
from urllib.parse import urlsplit

from daemonkit.faults import Invalid
from images.bounds.identity import NoIdentityError, user_of
from images.registry.credentials import ANONYMOUS, Credentials
from images.rootfs.stack import chain
from images.store.catalogue import StoredImage
from xenpod_proto.cri.v1 import runtime_pb2

_SHOWN = 200
# Ends a shortened user: no account name contains a colon, hence the text matches no account.
_CUT = "...:"


def image_message(image: StoredImage) -> runtime_pb2.Image:
    """CRI's Image, with the user of its containers: a number, or a name for lookup in the image."""
    message = runtime_pb2.Image(
        id=image.id,
        repo_tags=image.repo_tags,
        repo_digests=image.repo_digests,
        size=image.size,
        pinned=image.pinned,
    )
    message.spec.image = image.id
    untrusted_user = image.run.get("User")
    _set_user(message, untrusted_user.partition(":")[0] if isinstance(untrusted_user, str) else "")
    return message


def _set_user(message: runtime_pb2.Image, untrusted_user: str) -> None:
    """Set uid or username.  To the kubelet's runAsNonRoot, neither means root, and a username means unknown.

    A user that CreateContainer refuses becomes a username: runAsNonRoot refuses it too.
    """
    try:
        who = user_of(untrusted_user)
    except NoIdentityError:
        message.username = untrusted_user if len(untrusted_user) <= _SHOWN else untrusted_user[:_SHOWN] + _CUT
        return
    if isinstance(who, str):
        message.username = who
    else:
        message.uid.value = who


def verbose_info(image: StoredImage) -> dict[str, str]:
    """The verbose part of ``crictl inspecti``, in containerd's shape."""
    pulled = datetime.fromtimestamp(image.pulled_at / 1e9, UTC).isoformat()
    info = {
        "chainID": chain(image.config["rootfs"]["diff_ids"]),
        "imageSpec": image.config,
        "manifestDigest": image.manifest_digest,
        "filesystems": [{"path": str(path), "type": image.fs_type} for path in image.stack],
        "pulledAt": pulled,
        "lost": dict(image.lost),
    }
    return {"info": json.dumps(info)}


def credentials_from(auth: runtime_pb2.AuthConfig) -> Credentials:
    """Read CRI's AuthConfig in all its forms; raises Invalid, without the secret, if malformed."""
    server = _server(auth.server_address)
    if auth.registry_token:
        return Credentials(registry_token=_sendable(auth.registry_token), server=server)
    if auth.username:
        return Credentials(auth.username, auth.password, server=server)
    if auth.identity_token:
        return Credentials(identity_token=auth.identity_token, server=server)
    if not auth.auth:
        return ANONYMOUS
    try:
        username, colon, password = base64.b64decode(auth.auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Invalid("read credentials", "", "auth is not base64 of user:password") from None
    if not colon or not username:
        raise Invalid("read credentials", "", "auth is not base64 of user:password")
    # Docker pads this field with zero bytes.
    return Credentials(username, password.strip("\0"), server=server)


def _sendable(token: str) -> str:
    if not token.isascii() or not token.isprintable():
        raise Invalid("read credentials", "", "the registry token has a character no header may hold")
    return token


def _server(address: str) -> str:
    """ "https://index.docker.io/v1/" is "docker.io"."""
    host = urlsplit(address if "://" in address else f"//{address}").netloc if address else ""
    return "docker.io" if host == "index.docker.io" else host
