"""Turns a host path into attachable mounts: looked up once, and held from then on (ADR 30)."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from daemonkit.faults import Broken, Fault, Invalid, Missing, Refused
from daemonkit.host import mountinfo
from daemonkit.host.lookup import Lookup, Place
from daemonkit.tasks import complete
from protect.host import mounts, mountspace
from protect.model.volume import Volume, VolumeSource

P = ParamSpec("P")
T = TypeVar("T")

OPERATION = "share"
_KINDS = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_NOT_BOUND = "it is in a mount that cannot be bound elsewhere"
COMMANDING = frozenset(
    "proc sysfs cgroup cgroup2 cpuset devtmpfs devpts debugfs tracefs securityfs configfs efivarfs bpf"
    " pstore xenfs nsfs selinuxfs smackfs binfmt_misc fusectl nfsd rpc_pipefs mqueue resctrl binder"
    " functionfs gadgetfs ocfs2_dlmfs openpromfs ibmasmfs ipathfs spufs s390_hypfs oprofilefs usbfs"
    " usbdevfs".split()
)
"""Types of file systems whose files control the kernel: a write would control the host."""


async def take_mounts(volume: Volume, lookup: Lookup, users: int, taken: list[VolumeSource]) -> None:
    """Take the mounts of a volume, and add them to ``taken``.  The caller limits the wait for file servers.

    ``users``: descriptor of the user namespace for a volume with mapped ids.  A cancelled call has ended, and
    may have added a source.

    Missing, Invalid; Refused: a socket, pipe, device, or a file system that controls the host; also a volume
    that shall follow mounts on a mount without propagation.  If a directory such as ``/`` has controlling
    file systems further down, they are left out.
    """
    try:
        with await lookup.find(volume.host_path, make=volume.create_directory) as place:
            known = await _step(mountinfo.mounts)
            mount = known.get(mountinfo.number_of(place.descriptor))
            if mount is None:
                raise Refused(OPERATION, volume.host_path, "it was unmounted just now", "try again")
            directory = _checked(volume, place, mount)
            below = list(mountinfo.below(known, mount.number)) if directory else []
            if not any(each.kind in COMMANDING for each in below):
                await _step(_copy, volume, place, users, taken)
                return
            unbindable = frozenset(each.place for each in below if each.unbindable)
            # The marks leave mounts out; they must not apply to the host's own mounts.
            with await lookup.copied(follow=volume.follow_host) as copied:
                await _take_copied(volume, lookup, copied, unbindable, users, taken)
    except OSError as error:
        raise _fault(volume, error) from error


async def _take_copied(
    volume: Volume,
    lookup: Lookup,
    copied: Place,
    unbindable: frozenset[str],
    users: int,
    taken: list[VolumeSource],
) -> None:
    """Mark mounts as unbindable: copies omit them, with all mounts below.

    A new namespace may have lost the host's unbindable marks (Linux 6.18 does).
    """
    home = Path(f"/proc/{lookup.pid}")
    top = mountinfo.number_of(copied.descriptor)
    tried: set[int] = set()
    while True:
        known = await _step(mountinfo.mounts, home)
        found = mountinfo.highest(known, top, lambda at: at.kind in COMMANDING or at.place in unbindable)
        marks = {at.number: at.place for at in found if not at.unbindable}
        # An unmarkable mount is gone at the next look (a copy that follows the host changes with every pod),
        # or below another mount and out of reach.
        if tried == marks.keys() or await lookup.make_unbindable(marks):
            break
        tried = set(marks)
    await _step(mountspace.inside, home / "ns/mnt", lambda: _copy(volume, copied, users, taken))


def _copy(volume: Volume, place: Place, users: int, taken: list[VolumeSource]) -> None:
    """A detached copy of the mounts at a place, with their attributes set."""
    directory = stat.S_ISDIR(place.mode)
    source = VolumeSource(volume, mounts.clone(place.descriptor, recursive=directory), directory)
    try:
        if directory and volume.follow_host and not volume.map_ids:
            source.stage = mounts.clone(place.descriptor, recursive=True)
            _set_attributes(source.stage, mounts.MS_SLAVE, readonly=volume.readonly)
        _set_attributes(source.tree, mounts.MS_PRIVATE, readonly=volume.readonly)
        if volume.map_ids:
            _map_ids(source, users)
    except BaseException:
        source.close()
        raise
    taken.append(source)


async def _step(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a step in a thread, to its end.  All steps are short: none asks a file server."""
    return await complete(asyncio.to_thread(work, *args, **kwargs))


def _checked(volume: Volume, place: Place, mount: mountinfo.Mount) -> bool:
    """Whether the place is a directory; Refused for forbidden kinds."""
    mode = place.mode
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


def attributes(*, readonly: bool) -> int:
    """Attributes of all mounts of a volume: a mount without them would give access to mounts below."""
    always = mounts.MOUNT_ATTR_NOSUID | mounts.MOUNT_ATTR_NODEV
    return always | mounts.MOUNT_ATTR_RDONLY if readonly else always


def _set_attributes(tree: int, way: int, *, readonly: bool) -> None:
    """Set attributes and propagation.  Later mounts reach the zone only by the stage: see following.py."""
    mounts.change(tree, add=attributes(readonly=readonly), propagation=way, recursive=True)


def _map_ids(source: VolumeSource, users: int) -> None:
    """Map the ids of all file systems of the source; Refused if a file system does not support it."""
    try:
        mounts.change(source.tree, add=mounts.MOUNT_ATTR_IDMAP, users=users, recursive=True)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM):
            raise
        cause = "its file system, or one mounted below it, cannot be mounted with mapped ids"
        hint = "use a volume on another file system, or leave out hostUsers: false"
        raise Refused(OPERATION, source.volume.host_path, cause, hint) from error


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
