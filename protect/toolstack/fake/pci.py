"""PCI functions of fake domains: a file for each in the domain's directory, and nothing in the zone."""

from __future__ import annotations

from collections.abc import Iterable

from daemonkit.faults import Exists, Missing, Refused
from protect.toolstack.fake.domain import Domain
from protect.toolstack.fake.settings import FakeSettings

_OPERATION = "attach PCI function"


def attach(settings: FakeSettings, domain: Domain, address: str, others: Iterable[Domain]) -> None:
    """Refuse what Xen would refuse."""
    if address in functions(domain):
        raise Exists(_OPERATION, f"{address} of {domain.spec.name}", "attached already")
    if address not in settings.pci:
        raise Missing(_OPERATION, address, "there is no such function", "fake.pci says which there are")
    if not settings.iommu:
        raise Refused(_OPERATION, address, "this host has no IOMMU", "fake.iommu says that it has one")
    if not domain.spec.passthrough:
        cause = "its zone was made without an IOMMU's page tables"
        raise Refused(
            _OPERATION, address, cause, "name the function in [host.devices] before the zone is made"
        )
    for other in others:
        if address in functions(other):
            raise Refused(_OPERATION, address, f"{other.spec.name} has it")
    directory = domain.directory / "pci"
    directory.mkdir(exist_ok=True)
    (directory / address).touch()


def detach(domain: Domain, address: str) -> None:
    """Forget it; succeeds if there is none."""
    (domain.directory / "pci" / address).unlink(missing_ok=True)


def functions(domain: Domain) -> list[str]:
    """The addresses of those that it has."""
    directory = domain.directory / "pci"
    return sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []
