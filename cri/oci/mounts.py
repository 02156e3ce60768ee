"""The mounts of a container: kernel file systems, and files from the host."""

from __future__ import annotations

from collections.abc import Iterable

from cri.oci.values import Json

CONTAINERS = "/run/xenpod/containers"
"""The containers' directory in a zone."""

MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
    "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
)  # fmt: skip
READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def kernel_mounts(
    own_shm: int, *, privileged: bool = False, zone_proc: bool = False, zone_dev: bool = False
) -> list[Json]:
    """The mounts of every OCI runtime; sysfs and cgroups are writable only for privileged containers.

    ``own_shm``: bytes of the container's own /dev/shm; 0: the container shares /dev/shm of its zone, the
    pod's.  ``zone_proc``: /proc is the zone's own mount.  ``zone_dev``: /dev is the zone's own mount, and
    shows devices that come and go.
    """
    way = "rw" if privileged else "ro"
    return [
        _proc(zone=zone_proc),
        _dev(zone=zone_dev),
        _mount(
            "/dev/pts",
            "devpts",
            "devpts",
            "nosuid",
            "noexec",
            "newinstance",
            "ptmxmode=0666",
            "mode=0620",
            "gid=5",
        ),
        _mount("/dev/mqueue", "mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        _shm(own_shm),
        _mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", way),
        _mount("/sys/fs/cgroup", "cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", way),
    ]


def _proc(*, zone: bool) -> Json:
    safe = ("nosuid", "noexec", "nodev")
    if zone:
        return _mount("/proc", "bind", "/proc", "rbind", "rprivate", *safe)
    return _mount("/proc", "proc", "proc", *safe)


def _dev(*, zone: bool) -> Json:
    """A mount of the zone's /dev without the mounts below.  Every container has its own /dev/pts."""
    if zone:
        return _mount("/dev", "bind", "/dev", "bind", "rprivate", "rw", "nosuid")
    return _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k")


def _shm(own: int) -> Json:
    safe = ("nosuid", "noexec", "nodev")
    if own:
        return _mount("/dev/shm", "tmpfs", "shm", *safe, "mode=1777", f"size={own}")
    return _mount("/dev/shm", "bind", "/dev/shm", "rbind", "rprivate", "rw", *safe)


def file_mounts(container_id: str, names: Iterable[str], *, readonly: bool) -> list[Json]:
    """Bind ``files/<name>`` of the container's directory in the zone to ``/etc/<name>``."""
    way = "ro" if readonly else "rw"
    base = f"{CONTAINERS}/{container_id}/files"
    return [_mount(f"/etc/{name}", "bind", f"{base}/{name}", "rbind", "rprivate", way) for name in names]


def image_mount(container_id: str, name: str, destination: str) -> Json:
    """Bind the zone's image at ``volumes/<name>`` of the container's directory."""
    source = f"{CONTAINERS}/{container_id}/volumes/{name}"
    return _mount(destination, "bind", source, "rbind", "rprivate", "ro", "nodev")


def volume_bind(source: str, destination: str, *, way: str = "rw", follows_host: bool = False) -> Json:
    """Bind a volume; ``way`` is rw, ro or rro."""
    return _mount(destination, "bind", source, "rbind", "rslave" if follows_host else "rprivate", way)


def _mount(destination: str, kind: str, source: str, *options: str) -> Json:
    return {"destination": destination, "type": kind, "source": source, "options": list(options)}


def arranged(usual: Iterable[Json], asked: Iterable[Json]) -> list[Json]:
    """All mounts in order.  A requested mount replaces the usual one; a requested /dev replaces all of /dev.

    Mounts nearer to the root come first, because a later mount would hide the mounts below its target.
    """
    wanted = list(asked)
    taken = {str(mount["destination"]) for mount in wanted}
    kept = [mount for mount in usual if not _replaced(str(mount["destination"]), taken)]
    return sorted([*kept, *wanted], key=_depth)


def _replaced(destination: str, taken: set[str]) -> bool:
    return destination in taken or ("/dev" in taken and destination.startswith("/dev/"))


def _depth(mount: Json) -> int:
    return str(mount["destination"]).count("/")
