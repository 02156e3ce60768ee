"""Kubernetes quantities ("512Mi", "1.5G", "1000000") as whole numbers."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

_FORM = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?")
_UNITS = {
    None: 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip


def quantity(text: str, limit: int) -> int:
    """``text`` as a number from 1 to ``limit``, fractions rounded up; ValueError otherwise."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.80} is not a quantity such as 512Mi")
    value = int((Decimal(match[1]) * _UNITS[match[2]]).to_integral_value(ROUND_CEILING))
    if not 1 <= value <= limit:
        raise ValueError(f"{text!r:.80} is not between 1 and {limit}")
    return value
