"""Reads the attributes of entries, as far as a filesystem can hold them."""

from __future__ import annotations

from images.image_errors import Unpackable
from images.layer import losses, tarstream
from images.layer.inode import Attributes
from images.layer.tarstream import TarEntry

NAME_MAX = 255
# tar2sqfs accepts no longer PAX header, and names need a part of the header.
MAX_XATTRS_BYTES = 48 << 10
_KEPT = (b"user.", b"trusted.", b"security.")
# The kernel's own overlay marks; in a lower layer they would hide files.
_OVERLAY = b"trusted.overlay."
_ACLS = (losses.ACL_ACCESS, losses.ACL_DEFAULT)
_SHARED_MOST = 4096


class AttributeTable:
    """Shares attribute objects between entries with equal attributes: an image has few distinct ones."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._shared: dict[Attributes, Attributes] = {}

    def of(self, entry: TarEntry) -> tuple[Attributes, int]:
        """An entry's attributes, and the losses (see losses.py); raises Unpackable."""
        if entry.xattrs:
            xattrs, lost = self._kept(entry)
            mode = losses.mode_without_acl(entry.mode, dict(entry.xattrs).get(losses.ACL_ACCESS, b""))
            return Attributes(entry.kind, mode, entry.uid, entry.gid, xattrs), entry.lost | lost
        plain = Attributes(entry.kind, entry.mode, entry.uid, entry.gid, ())
        if len(self._shared) >= _SHARED_MOST:
            self._shared.clear()
        return self._shared.setdefault(plain, plain), entry.lost

    def _kept(self, entry: TarEntry) -> tuple[tuple[tuple[bytes, bytes], ...], int]:
        kept: list[tuple[bytes, bytes]] = []
        lost = 0
        for key, value in entry.xattrs:
            if key in _ACLS:
                lost |= losses.ACL
            elif key.startswith(_OVERLAY):
                continue
            elif not key.startswith(_KEPT):
                lost |= losses.ATTRIBUTE
            # The kernel allows user attributes on files and directories alone.
            elif not key.startswith(b"user.") or entry.kind in (tarstream.FILE, tarstream.DIR):
                kept.append((key, value))
        if (
            any(len(key) > NAME_MAX for key, _ in kept)
            or sum(len(k) + len(v) for k, v in kept) > MAX_XATTRS_BYTES
        ):
            cause = f"has extended attributes of more than {MAX_XATTRS_BYTES} bytes"
            raise Unpackable("merge", self._subject, f"{tarstream.shown_name(entry.name)} {cause}")
        return tuple(kept), lost
