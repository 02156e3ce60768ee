"""Compares results of specs with the failures that are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.support.e2e.ginkgo import Spec


@dataclass(frozen=True)
class Known:
    """A spec that fails."""

    name: str
    """A part of the spec's name."""
    reason: str


def verdict(found: Sequence[Spec], known: Iterable[Known]) -> list[str]:
    """The complaints: each unexpected failure, and each known failure that passed; [] if none.

    A known failure that matches no spec at all is no complaint: the spec is in another run.
    """
    listed = list(known)
    complaints = [] if found else ["no spec ran"]
    for spec in found:
        expected = next((one for one in listed if one.name in spec.name), None)
        if not spec.passed and expected is None:
            complaints.append(f"FAILED {spec.name}: {' '.join(spec.message.split())}")
        elif spec.passed and expected is not None:
            complaints.append(f"PASSED {spec.name}, but it is listed as a failure: {expected.reason}")
    return complaints
