"""PCI functions of a domain, by the kernel's backend (pciback)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xenbind.context import Context, struct
from xenbind.raw import CData, ffi, lib


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
    """Take a function from its driver, for pciback; fine if pciback has it."""
    with _function(address) as pci:
        context.call("libxl_device_pci_assignable_add", pci, 1, subject=address)


def give_back(context: Context, address: str) -> None:
    """Give a function that no domain has back to the driver that it had."""
    with _function(address) as pci:
        context.call("libxl_device_pci_assignable_remove", pci, 1, subject=address)


def add(context: Context, domid: int, address: str) -> None:
    """Attach, reset."""
    with _function(address) as pci:
        context.call("libxl_device_pci_add", domid, pci, ffi.NULL, subject=f"{address} of domain {domid}")


def remove(context: Context, domid: int, address: str, *, force: bool = False) -> None:
    """Detach.  Without ``force`` the guest has to agree."""
    function = "libxl_device_pci_destroy" if force else "libxl_device_pci_remove"
    with _function(address) as pci:
        context.call(function, domid, pci, ffi.NULL, subject=f"{address} of domain {domid}")


def functions(context: Context, domid: int) -> list[str]:
    """The addresses of those that it has now."""
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
    """Whether it is a PV domain."""
    with struct("libxl_dominfo") as info:
        context.call("libxl_domain_info", info, domid, subject=f"domain {domid}")
        return bool(info.domain_type == lib.LIBXL_DOMAIN_TYPE_PV)
