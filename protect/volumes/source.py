"""Turn a host path into mounts that can be attached: resolved once, and held from then on."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from daemonkit.faults import Broken, Fault, Invalid, Missing, Refused
from protect.host import mountinfo, mounts, mountspace
from protect.model.volume import Volume, VolumeSource

OPERATION = "share"
_KINDS = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_NOT_BOUND = "it is in a mount that cannot be bound elsewhere"
COMMANDING = frozenset(
    "proc sysfs cgroup cgroup2 devtmpfs devpts debugfs tracefs securityfs configfs efivarfs bpf pstore xenfs"
    " nsfs selinuxfs binfmt_misc fusectl nfsd rpc_pipefs mqueue".split()
)
"""Kinds of file systems whose files are no data, but the host's kernel: to write to one is to command it."""


def take(volume: Volume, users: int = 0) -> VolumeSource:
    """Take the mounts of a volume.  Blocks for as long as the path's file system takes to answer.

    ``users``: descriptor of the user namespace for one whose ids are mapped.

    Missing, Invalid; Refused for what a zone cannot have of the host: sockets, pipes, devices, and the file
    systems by which the host is commanded; and to follow mounts that do not tell of what is mounted below
    them.  Such file systems are left out of a volume that has them further down, as ``/`` has.
    """
    try:
        try:
            return _take(volume, users)
        except _LeaveOut as below:
            # To be left out they are marked, and must not be so for the host.
            marked = below.places
            return mountspace.in_a_copy(lambda: _take(volume, users, marked))
    except OSError as error:
        raise _fault(volume, error) from error


class _LeaveOut(Exception):  # noqa: N818 - no error
    """There is something below that must be left out: ``places``, together with what is left out anyway."""

    def __init__(self, places: frozenset[Path]) -> None:
        super().__init__()
        self.places = places


def _take(volume: Volume, users: int, marked: frozenset[Path] | None = None) -> VolumeSource:
    """``marked``: mark the mounts at these places, and those that command the host; None: raise _LeaveOut."""
    place = _open(volume)
    try:
        known = mountinfo.mounts()
        mount = known.get(mountinfo.number_of(place))
        if mount is None:
            raise Refused(OPERATION, volume.host_path, "it was unmounted just now", "try again")
        directory = _checked(volume, place, mount)
        _leave_out(list(mountinfo.below(known, mount.number)), marked)
        tree = mounts.clone(place, recursive=True)
    finally:
        os.close(place)
    source = VolumeSource(volume, tree, directory)
    try:
        _set_right(source)
        if volume.map_ids:
            _map_ids(source, users)
    except BaseException:
        source.close()
        raise
    return source


def _checked(volume: Volume, place: int, mount: mountinfo.Mount) -> bool:
    """Whether it is a directory; Refused for what zones cannot have."""
    mode = os.fstat(place).st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "neither a file nor a directory")
        hint = "share the directory of files that the pod needs, or reach the host over the network"
        raise Refused(OPERATION, volume.host_path, f"{kind} of the host is out of a zone's reach", hint)
    if mount.kind in COMMANDING:
        hint = "run the pod on the host's own runtime, if it has to command the host"
        raise Refused(OPERATION, volume.host_path, f"{mount.kind} of the host is out of a zone's reach", hint)
    if mount.unbindable:
        raise Refused(OPERATION, volume.host_path, _NOT_BOUND)
    if volume.follow_host and not mount.tells:
        hint = "make it one (mount --make-rshared), or let the volume be private"
        cause = "to follow the host's mounts, it must be in a shared or slave mount, and is not"
        raise Refused(OPERATION, volume.host_path, cause, hint)
    return stat.S_ISDIR(mode)


def _leave_out(below: Sequence[mountinfo.Mount], marked: frozenset[Path] | None) -> None:
    """Mark mounts: copies leave unbindable ones out, with all below them.

    A new namespace may have forgotten which were unbindable (Linux 6.18 does).
    """
    if marked is None:
        if any(each.kind in COMMANDING for each in below):
            raise _LeaveOut(frozenset(each.place for each in below if each.unbindable))
        return
    for each in below:
        if each.kind not in COMMANDING and each.place not in marked:
            continue
        top = mounts.locate(each.place)
        try:
            # Another one may be mounted over it: then no path leads to it, in the zone either.
            if mountinfo.number_of(top) == each.number:
                mounts.change(top, propagation=mounts.MS_UNBINDABLE, recursive=False)
        finally:
            os.close(top)


def _set_right(source: VolumeSource) -> None:
    """All of it: what is mounted below a read-only volume is another way to write to the host.

    A read-only volume does not follow the host: what is mounted later could be written.
    """
    volume = source.volume
    follow = volume.follow_host and not volume.readonly
    attributes = mounts.MOUNT_ATTR_NOSUID | mounts.MOUNT_ATTR_NODEV
    if volume.readonly:
        attributes |= mounts.MOUNT_ATTR_RDONLY
    way = mounts.MS_SLAVE if follow else mounts.MS_PRIVATE
    mounts.change(source.tree, add=attributes, propagation=way, recursive=True)


def _map_ids(source: VolumeSource, users: int) -> None:
    """Map the ids of all its file systems; Refused when one of them cannot."""
    try:
        mounts.change(source.tree, add=mounts.MOUNT_ATTR_IDMAP, users=users, recursive=True)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM):
            raise
        cause = "its file system, or one mounted below it, cannot be mounted with mapped ids"
        hint = "use a volume on another file system, or leave out hostUsers: false"
        raise Refused(OPERATION, source.volume.host_path, cause, hint) from error


def _open(volume: Volume) -> int:
    try:
        return mounts.locate(Path(volume.host_path))
    except FileNotFoundError:
        if not volume.create_directory:
            raise
    os.makedirs(volume.host_path, mode=0o755, exist_ok=True)
    return mounts.locate(Path(volume.host_path))


def _fault(volume: Volume, error: OSError) -> Fault:
    cause = os.strerror(error.errno or 0)
    match error.errno:
        case errno.ENOENT:
            return Missing(OPERATION, volume.host_path, "there is no such file or directory")
        case errno.EEXIST:
            return Refused(OPERATION, volume.host_path, "a symbolic link to nothing is in the way")
        case errno.ELOOP | errno.ENOTDIR | errno.ENAMETOOLONG:
            return Invalid(OPERATION, volume.host_path, cause)
        case errno.EINVAL:
            return Refused(OPERATION, volume.host_path, _NOT_BOUND)
        case errno.EACCES | errno.EPERM | errno.EROFS | errno.ESTALE | errno.EHOSTDOWN | errno.EIO:
            return Refused(OPERATION, volume.host_path, cause)
    return Broken(OPERATION, volume.host_path, str(error))
