"""Names of domains, by which ours are told from other virtual machines."""

from __future__ import annotations

from uuid import UUID


def domain_name(label: str, uuid: UUID) -> str:
    """The name of a zone's domain, ``<label>.<8 hex digits>``: no other virtual machine of the host has one.

    ``label`` is for people; what Xen's files could not have in a name is replaced, and it is cut at 32.
    """
    readable = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in label)
    return f"{readable[:32]}.{uuid.hex[:8]}"


def is_zone_domain(name: str, uuid: UUID) -> bool:
    """Whether ``domain_name`` can have made this name.  Domains with any other name must not be touched."""
    return name.endswith(f".{uuid.hex[:8]}")
