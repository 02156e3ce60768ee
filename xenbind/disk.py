"""Block devices of a domain, by the kernel's backend (blkback), and PCI functions (pciback)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from xenbind import errors
from xenbind.context import Context, struct
from xenbind.raw import CData, ffi, lib, text


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """``device`` is a block device of dom0; ``script`` is run at attach and detach (absolute path)."""

    vdev: str
    device: str
    readonly: bool
    script: str


def attach_disk(context: Context, domid: int, disk: BlockDevice) -> str:
    """Attach a disk; returns the backend's path in xenstore.  DeviceExists if the domain has the vdev."""
    json_text = json.dumps(
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
    with struct("libxl_device_disk") as parsed:
        context.call("libxl_device_disk_from_json", parsed, json_text.encode())
        context.call("libxl_device_disk_add", domid, parsed, ffi.NULL, subject=subject)
        return _backend(context, domid, parsed, subject)


def backend(context: Context, domid: int, vdev: str) -> str:
    """The backend's path in xenstore; DeviceNotFound if the vdev is missing."""
    with _found(context, domid, vdev) as disk:
        return _backend(context, domid, disk, f"{vdev} of domain {domid}")


def detach_disk(context: Context, domid: int, vdev: str, *, force: bool = False) -> None:
    """Detach a disk.  Without ``force`` the guest has to agree (TimedOut after 10 s)."""
    function = "libxl_device_disk_destroy" if force else "libxl_device_disk_remove"
    with _found(context, domid, vdev) as disk:
        context.call(function, domid, disk, ffi.NULL, subject=f"{vdev} of domain {domid}")


@contextmanager
def _found(context: Context, domid: int, vdev: str) -> Iterator[CData]:
    subject = f"{vdev} of domain {domid}"
    if vdev not in [disk.vdev for disk in disks(context, domid)]:
        raise errors.DeviceNotFound("libxl_vdev_to_device_disk", lib.ERROR_NOTFOUND, subject)
    with struct("libxl_device_disk") as disk:
        context.call("libxl_vdev_to_device_disk", domid, vdev.encode(), disk, subject=subject)
        yield disk


def _backend(context: Context, domid: int, disk: CData, subject: str) -> str:
    with struct("libxl_diskinfo") as info:
        context.call("libxl_device_disk_getinfo", domid, disk, info, subject=subject)
        return text(info.backend)


def disks(context: Context, domid: int) -> list[BlockDevice]:
    """The domain's present disks (``script`` stays empty)."""
    count = ffi.new("int *")
    found = lib.libxl_device_disk_list(context.ctx, domid, count)
    context.take_log()
    if found == ffi.NULL:
        return []
    try:
        return [_disk(found[number]) for number in range(count[0])]
    finally:
        lib.libxl_device_disk_list_free(found, count[0])


def _disk(found: CData) -> BlockDevice:
    vdev, device = ("" if value == ffi.NULL else text(value) for value in (found.vdev, found.pdev_path))
    return BlockDevice(vdev, device, not found.readwrite, "")


@contextmanager
def _function(address: str) -> Iterator[CData]:
    """A struct for "0000:65:00.0"."""
    domain, bus, rest = address.split(":")
    device, function = rest.split(".")
    with struct("libxl_device_pci") as pci:
        pci.domain, pci.bus = int(domain, 16), int(bus, 16)
        pci.dev, pci.func = int(device, 16), int(function)
        yield pci


def _address(pci: CData) -> str:
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.dev:02x}.{pci.func}"


def make_assignable(context: Context, address: str) -> None:
    """Take a function from its driver, for pciback; no effect if pciback has it."""
    with _function(address) as pci:
        context.call("libxl_device_pci_assignable_add", pci, 1, subject=address)


def give_back(context: Context, address: str) -> None:
    """Return an unused function to its original driver."""
    with _function(address) as pci:
        context.call("libxl_device_pci_assignable_remove", pci, 1, subject=address)


def add_function(context: Context, domid: int, address: str) -> None:
    """Attach a PCI function, reset."""
    with _function(address) as pci:
        context.call("libxl_device_pci_add", domid, pci, ffi.NULL, subject=f"{address} of domain {domid}")


def remove_function(context: Context, domid: int, address: str, *, force: bool = False) -> None:
    """Detach a PCI function.  Without ``force`` the guest has to agree."""
    function = "libxl_device_pci_destroy" if force else "libxl_device_pci_remove"
    with _function(address) as pci:
        context.call(function, domid, pci, ffi.NULL, subject=f"{address} of domain {domid}")


def functions(context: Context, domid: int) -> list[str]:
    """The addresses of the domain's present PCI functions."""
    count = ffi.new("int *")
    found = lib.libxl_device_pci_list(context.ctx, domid, count)
    context.take_log()
    if found == ffi.NULL:
        return []
    try:
        return sorted(_address(found[number]) for number in range(count[0]))
    finally:
        lib.libxl_device_pci_list_free(found, count[0])


def is_pv(context: Context, domid: int) -> bool:
    """Whether a domain is PV."""
    with struct("libxl_dominfo") as info:
        context.call("libxl_domain_info", info, domid, subject=f"domain {domid}")
        return bool(info.domain_type == lib.LIBXL_DOMAIN_TYPE_PV)
