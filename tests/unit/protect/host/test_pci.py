"""PCI functions of a host for zones, by a sysfs of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemonkit.faults import Missing, Refused
from protect.host import pci

ADDRESS = "0000:65:00.0"


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    """A network card with a driver and a reset; its interface is down."""
    place = tmp_path / ADDRESS
    (place / "net/eth0").mkdir(parents=True)
    (place / "net/eth0/flags").write_text("0x1002\n")
    (place / "class").write_text("0x020000\n")
    (place / "reset").write_text("")
    driver(place, "ixgbe")
    return tmp_path


def driver(place: Path, name: str) -> None:
    there = place.parent.parent / f"drivers-{place.parent.name}" / name
    there.mkdir(parents=True, exist_ok=True)
    (place / "driver").unlink(missing_ok=True)
    (place / "driver").symlink_to(there)


def test_unused_function_passes_and_is_reset(functions: Path) -> None:
    """A driver alone is no use."""
    pci.check_function(ADDRESS, functions)
    assert pci.driver(ADDRESS, functions) == "ixgbe"
    pci.reset(ADDRESS, functions)
    assert (functions / ADDRESS / "reset").read_text() == "1"


def test_missing_function_is_refused(functions: Path) -> None:
    with pytest.raises(Missing, match="lspci -D"):
        pci.check_function("0000:65:00.1", functions)


def test_function_with_an_interface_in_use_is_refused(functions: Path) -> None:
    (functions / ADDRESS / "net/eth0/flags").write_text("0x1003\n")
    with pytest.raises(Refused, match="the interface eth0 is up"):
        pci.check_function(ADDRESS, functions)
    # A function of pciback shows no interface of the host.
    driver(functions / ADDRESS, pci.PCIBACK)
    pci.check_function(ADDRESS, functions)


def test_function_without_a_reset_is_refused(functions: Path) -> None:
    (functions / ADDRESS / "reset").unlink()
    with pytest.raises(Refused, match="cannot be reset"):
        pci.check_function(ADDRESS, functions)


def test_a_bridge_is_refused(functions: Path) -> None:
    (functions / ADDRESS / "class").write_text("0x060400\n")
    with pytest.raises(Refused, match="a bridge"):
        pci.check_function(ADDRESS, functions)
