"""Versions of the programs that read our output, such as Kubernetes 1.36 and Kyverno 1.17."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(\.\d{1,4}([-+][\w.+-]{1,64})?)?", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A minor release, such as 1.36."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def version(text: str) -> Version:
    """Read a version: ``1.36``, ``v1.36``, ``1.36.2``, or a distribution's, such as ``v1.36.2-gke.1``.

    ValueError: the text is no version.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.80} is not a release such as 1.36")
    return Version(int(match[1]), int(match[2]))
