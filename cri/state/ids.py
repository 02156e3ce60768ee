"""Ids of sandboxes and containers: 64 hexadecimal digits, as every CRI client expects."""

from __future__ import annotations

import secrets


def new_id() -> str:
    """A new random id; also a valid zone and workload id."""
    return secrets.token_hex(32)
