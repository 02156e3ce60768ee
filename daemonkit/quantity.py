"""Quantities of Kubernetes (apimachinery, resource.Quantity): ``512Mi``, ``1.5G``, ``250m``, ``1e3``."""

from __future__ import annotations

import re
import reprlib
from decimal import ROUND_CEILING, Decimal

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?", re.ASCII)
_BINARY = {"Ei": 2**60, "Pi": 2**50, "Ti": 2**40, "Gi": 2**30, "Mi": 2**20, "Ki": 2**10}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
LARGEST = 2**63 - 1
"""Kubernetes' largest number."""

_LONGEST_CHARACTERS = 64
_EXPONENTS = 18


def exact(untrusted_text: object) -> Decimal:
    """The exact number; ValueError if the text is no quantity."""
    if not isinstance(untrusted_text, str) or len(untrusted_text) > _LONGEST_CHARACTERS:
        raise ValueError(f"{reprlib.repr(untrusted_text)} is no quantity such as 512Mi")
    match = _QUANTITY.fullmatch(untrusted_text)
    if match is None:
        raise ValueError(f"{untrusted_text!r} is no quantity such as 512Mi")
    number, unit, exponent = match.groups()
    if exponent and abs(int(exponent)) > _EXPONENTS:
        raise ValueError(f"{untrusted_text!r} is out of range")
    scale = _DECIMAL.get(unit or "", int(exponent or 0))
    return Decimal(number) * (_BINARY[unit] if unit in _BINARY else Decimal(10) ** scale)


def whole(untrusted_text: object) -> int:
    """As ``exact``, rounded up; ValueError beyond 2**63, too."""
    value = int(exact(untrusted_text).to_integral_value(ROUND_CEILING))
    if abs(value) > LARGEST:
        raise ValueError(f"{untrusted_text!r} is out of range")
    return value


def within(untrusted_text: object, limit: int) -> int:
    """The number rounded up, from 1 to ``limit``; ValueError otherwise."""
    value = int(exact(untrusted_text).to_integral_value(ROUND_CEILING))
    if not 1 <= value <= limit:
        raise ValueError(f"{untrusted_text!r} is not between 1 and {limit}")
    return value


def in_mib(size_bytes: int) -> str:
    """A size for messages, rounded to whole MiB."""
    return f"{size_bytes / _BINARY['Mi']:.0f} MiB"


def quantity_text(size: int) -> str:
    """A number of bytes in the API server's form: with the largest binary unit that divides the number."""
    for unit, scale in _BINARY.items():
        if size and not size % scale:
            return f"{size // scale}{unit}"
    return str(size)
