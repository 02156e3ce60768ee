"""Names and counts attributes of a layer's entries that squashfs cannot store.

Squashfs has whole seconds in 32 unsigned bits, and extended attributes of three namespaces: user, trusted and
security (Linux, fs/squashfs/squashfs_fs.h).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from struct import error as StructError
from struct import iter_unpack

# Bits, one for each kind of loss.
ACL, ATTRIBUTE, FRACTION, RANGE = 1, 2, 4, 8
NAMES: Mapping[int, str] = {
    ACL: "posix_acls",
    ATTRIBUTE: "extended_attributes",
    FRACTION: "time_fractions",
    RANGE: "times_out_of_range",
}
"""The names in the index, and in the information about an image."""
TEXTS: Mapping[str, str] = {
    "posix_acls": "POSIX ACLs",
    "extended_attributes": "extended attributes outside user, trusted and security",
    "time_fractions": "fractions of a second",
    "times_out_of_range": "times before 1970 or after 2106",
}
TIME_MAX = 0xFFFFFFFF
ACL_ACCESS, ACL_DEFAULT = b"system.posix_acl_access", b"system.posix_acl_default"
_ACL_VERSION = 2
_GROUP_OBJ, _MASK = 0x04, 0x10


class LossCount:
    """Counts the inodes of a filesystem by loss."""

    def __init__(self) -> None:
        self._by_bits: Counter[int] = Counter()

    def add(self, lost: int) -> None:
        """Count an inode; lost: bits."""
        if lost:
            self._by_bits[lost] += 1

    def named(self) -> dict[str, int]:
        """The nonzero counts, by their names in NAMES."""
        sums = {
            name: sum(n for bits, n in self._by_bits.items() if bits & bit) for bit, name in NAMES.items()
        }
        return {name: count for name, count in sums.items() if count}


def shown_losses(counts: Mapping[str, int]) -> str:
    """The counts as a text for people."""
    return ", ".join(f"{TEXTS.get(name, name)} (files: {count})" for name, count in counts.items())


def mode_without_acl(mode: int, acl: bytes) -> int:
    """The mode of a file that loses its access ACL: the group keeps at most its rights from the ACL.

    With an ACL the mode's group bits are the mask, the most that any named user or group has (acl(5));
    without the ACL they would be the rights of the owning group. Source of the format: Linux,
    posix_acl_xattr.h.
    """
    if acl[:4] != _ACL_VERSION.to_bytes(4, "little"):
        return mode
    try:
        entries: dict[int, int] = {tag: allowed for tag, allowed, _ in iter_unpack("<HHI", acl[4:])}
    except StructError:
        return mode
    group = entries.get(_GROUP_OBJ, mode >> 3) & entries.get(_MASK, 7) & 7
    return mode & ~0o070 | mode & group << 3
