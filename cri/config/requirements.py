"""A handler's requirements on a host (``requires`` of ``[handlers.NAME]``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

FORMS = 'hvm, hap, iommu, "xen>=4.17", "device:NAME" and "label:NAME"'

_NAME = r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?"  # as in [host] of protectd.toml
_FORM = re.compile(
    rf"(?P<feature>hvm|hap|iommu)|xen ?>= ?(?P<xen>[0-9]{{1,4}}\.[0-9]{{1,4}})"
    rf"|device:(?P<device>{_NAME})|label:(?P<label>{_NAME})"
)


class RequirementKind(Enum):
    """Subject of a requirement: a feature of the hypervisor, its version, or a name in ``[host]``."""

    FEATURE = "feature"
    XEN = "xen"
    DEVICE = "device"
    LABEL = "label"


@dataclass(frozen=True, slots=True)
class Requirement:
    """``value``: the feature (hvm, hap, iommu), the least version ("4.17"), or a name in ``[host]``."""

    kind: RequirementKind
    value: str


def requirement(text: str) -> Requirement:
    """Parse one entry of ``requires``; ValueError: the entry is malformed."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.80} is none of {FORMS}")
    kind = str(match.lastgroup)
    return Requirement(RequirementKind(kind), match[kind])


def version(text: str) -> tuple[int, int]:
    """Parse a version, for example ``"4.17"``, into numbers for comparison."""
    major, minor = text.split(".")
    return int(major), int(minor)
