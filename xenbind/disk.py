"""Block devices of a domain, by the kernel's backend (blkback)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from xenbind import errors
from xenbind.context import Context
from xenbind.raw import CData, ffi, lib


@dataclass(frozen=True, slots=True)
class Disk:
    """``device`` is a block device of dom0; ``script`` is run at attach and detach (absolute path)."""

    vdev: str
    device: str
    readonly: bool
    script: str


@contextmanager
def _struct() -> Iterator[CData]:
    disk = ffi.new("libxl_device_disk *")
    lib.libxl_device_disk_init(disk)
    try:
        yield disk
    finally:
        lib.libxl_device_disk_dispose(disk)


def add(context: Context, domid: int, disk: Disk) -> str:
    """Attach; the backend's path in xenstore.  DeviceExists when the domain has such a vdev."""
    text = json.dumps(
        {
            "pdev_path": disk.device,
            "vdev": disk.vdev,
            "backend": "phy",
            "format": "raw",
            "script": disk.script,
            "readwrite": 0 if disk.readonly else 1,
        }
    )
    subject = f"{disk.vdev} of domain {domid}"
    with _struct() as parsed:
        context.call(
            lib.libxl_device_disk_from_json, parsed, text.encode(), name="libxl_device_disk_from_json"
        )
        context.call(
            lib.libxl_device_disk_add, domid, parsed, ffi.NULL, name="libxl_device_disk_add", subject=subject
        )
        return _backend(context, domid, parsed, subject)


def backend(context: Context, domid: int, vdev: str) -> str:
    """The backend's path in xenstore; DeviceNotFound when there is no such vdev."""
    with _found(context, domid, vdev) as disk:
        return _backend(context, domid, disk, f"{vdev} of domain {domid}")


def remove(context: Context, domid: int, vdev: str, *, force: bool = False) -> None:
    """Detach.  Without ``force`` the guest has to agree (TimedOut when it does not within 10 s)."""
    call = lib.libxl_device_disk_destroy if force else lib.libxl_device_disk_remove
    name = "libxl_device_disk_destroy" if force else "libxl_device_disk_remove"
    with _found(context, domid, vdev) as disk:
        context.call(call, domid, disk, ffi.NULL, name=name, subject=f"{vdev} of domain {domid}")


@contextmanager
def _found(context: Context, domid: int, vdev: str) -> Iterator[CData]:
    subject = f"{vdev} of domain {domid}"
    if vdev not in [disk.vdev for disk in disks(context, domid)]:
        raise errors.DeviceNotFound("libxl_vdev_to_device_disk", -23, subject)
    with _struct() as disk:
        context.call(
            lib.libxl_vdev_to_device_disk,
            domid,
            vdev.encode(),
            disk,
            name="libxl_vdev_to_device_disk",
            subject=subject,
        )
        yield disk


def _backend(context: Context, domid: int, disk: CData, subject: str) -> str:
    info = ffi.new("libxl_diskinfo *")
    lib.libxl_diskinfo_init(info)
    try:
        context.call(
            lib.libxl_device_disk_getinfo,
            domid,
            disk,
            info,
            name="libxl_device_disk_getinfo",
            subject=subject,
        )
        return ffi.string(info.backend).decode()  # type: ignore[no-any-return]
    finally:
        lib.libxl_diskinfo_dispose(info)


def disks(context: Context, domid: int) -> list[Disk]:
    """The disks it has now (``script`` is not told)."""
    count = ffi.new("int *")
    found = lib.libxl_device_disk_list(context.ctx, domid, count)
    context.take_log()
    if found == ffi.NULL:
        return []
    try:
        return [_disk(found[number]) for number in range(count[0])]
    finally:
        lib.libxl_device_disk_list_free(found, count[0])


def _disk(found: CData) -> Disk:
    def text(value: CData) -> str:
        return "" if value == ffi.NULL else ffi.string(value).decode(errors="replace")

    return Disk(text(found.vdev), text(found.pdev_path), not found.readwrite, "")
