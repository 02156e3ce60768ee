"""Turn a host path into mounts that can be attached: resolved once, and held from then on."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from daemonkit.faults import Broken, Fault, Invalid, Missing, Refused
from protect.host import mounts
from protect.model.volume import Volume, VolumeSource

OPERATION = "share"
_KINDS = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def take(volume: Volume, users: int = 0) -> VolumeSource:
    """Take the mounts of a volume.  Blocks for as long as the path's file system takes to answer.

    ``users``: descriptor of the user namespace for one whose ids are mapped.

    Missing, Invalid; Refused for what a zone cannot have of the host: sockets, pipes, devices; and to follow
    mounts that do not tell of what is mounted below them.
    """
    try:
        return _take(volume, users)
    except OSError as error:
        raise _fault(volume, error) from error


def _take(volume: Volume, users: int) -> VolumeSource:
    place = _open(volume)
    try:
        mode = os.fstat(place).st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "neither a file nor a directory")
            hint = "share the directory of files that the pod needs, or reach the host over the network"
            raise Refused(OPERATION, volume.host_path, f"{kind} of the host is out of a zone's reach", hint)
        if volume.follow_host and not _tells(place):
            hint = "make it one (mount --make-rshared), or let the volume be private"
            cause = "to follow the host's mounts, it must be in a shared or slave mount, and is not"
            raise Refused(OPERATION, volume.host_path, cause, hint)
        tree = mounts.clone(place, recursive=True)
    finally:
        os.close(place)
    source = VolumeSource(volume, tree, stat.S_ISDIR(mode))
    try:
        _set_right(source)
        if volume.map_ids:
            _map_ids(source, users)
    except BaseException:
        source.close()
        raise
    return source


def _set_right(source: VolumeSource) -> None:
    volume = source.volume
    way = mounts.MS_SLAVE if volume.follow_host else mounts.MS_PRIVATE
    mounts.change(source.tree, propagation=way, recursive=True)
    if volume.readonly:
        mounts.change(source.tree, add=mounts.MOUNT_ATTR_RDONLY, recursive=volume.recursive_readonly)


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


def _tells(place: int) -> bool:
    """Whether the mount that an open file is in is shared or a slave (proc(5): fdinfo, mountinfo)."""
    with open(f"/proc/self/fdinfo/{place}") as file:
        number = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            if fields[0] == number:
                optional = fields[6 : fields.index("-", 6)]
                return any(each.startswith(("shared:", "master:")) for each in optional)
    return False


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
            return Refused(OPERATION, volume.host_path, "it is in a mount that cannot be bound elsewhere")
        case errno.EACCES | errno.EPERM | errno.EROFS | errno.ESTALE | errno.EHOSTDOWN | errno.EIO:
            return Refused(OPERATION, volume.host_path, cause)
    return Broken(OPERATION, volume.host_path, str(error))
