"""The driver's values: what protectd has, and what it has promised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of memory for zones: all, and what claims can have in all.

    ``claimable`` leaves out what zones without a claim have, and what others took of the host; what is
    reserved is a part of it.
    """

    total: int
    claimable: int


@dataclass(frozen=True, slots=True)
class Promise:
    """A reservation of protectd: its id is the uid of the claim it was made for.

    ``device``: the claim's, in the slice; "": it was not made for a claim.
    """

    claim_uid: str
    total_bytes: int
    pod_uids: tuple[str, ...]
    device: str = ""
