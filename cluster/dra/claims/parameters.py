"""Reads a claim's parameters for this driver: its opaque configuration, which any user may write.

Source: resource.k8s.io, DeviceAllocationConfiguration.  The form, in a claim's or a class's ``config``::

    opaque:
      driver: zones.xenpod.dev
      parameters: {apiVersion: xenpod.dev/v1alpha1, kind: ZoneResources, memory: 512Mi}
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from daemonkit.faults import Invalid
from daemonkit.quantity import whole

_OPERATION = "read parameters of claim"
_VERSION, _KIND = "xenpod.dev/v1alpha1", "ZoneResources"
_KEYS = frozenset({"apiVersion", "kind", "memory"})
_HINT = f"parameters are {{apiVersion: {_VERSION}, kind: {_KIND}, memory: 512Mi}}"


class ClaimParameters:
    """The parameters of each request of a claim."""

    def __init__(self, claim: str, driver: str, untrusted_configs: Sequence[Mapping[str, Any]]) -> None:
        """Invalid: malformed configuration for this driver.  Other drivers' configuration is ignored."""
        self._claim = claim
        self._memory: list[tuple[frozenset[str], int]] = []
        # The class's configuration comes first; a claim's own overrides it.
        for config in sorted(untrusted_configs, key=lambda one: one.get("source") == "FromClaim"):
            opaque = config.get("opaque")
            if isinstance(opaque, dict) and opaque.get("driver") == driver:
                requests = config.get("requests")
                of = frozenset(map(_name, requests)) if isinstance(requests, list) else frozenset[str]()
                self._memory.append((of, self._read(opaque.get("parameters"))))

    def memory(self, request: str) -> int | None:
        """Bytes of a request, or of the chosen alternative; None: no size."""
        names = {request, request.partition("/")[0]}
        return next((size for of, size in reversed(self._memory) if not of or of & names), None)

    def _read(self, untrusted_parameters: object) -> int:
        if not isinstance(untrusted_parameters, dict):
            raise self._invalid("parameters are no object")
        if unknown := sorted(map(str, untrusted_parameters.keys() - _KEYS)):
            raise self._invalid(f"unknown key {reprlib.repr(unknown[0])}")
        for key, wanted in (("apiVersion", _VERSION), ("kind", _KIND)):
            if (found := untrusted_parameters.get(key)) != wanted:
                raise self._invalid(f"{key} is {reprlib.repr(found)}, and only {wanted} is known")
        try:
            size = whole(untrusted_parameters.get("memory"))
        except ValueError as error:
            raise self._invalid(f"memory: {error}") from None
        if size <= 0:
            raise self._invalid(f"memory is {size}")
        return size

    def _invalid(self, cause: str) -> Invalid:
        return Invalid(_OPERATION, self._claim, cause, _HINT)


def _name(value: object) -> str:
    return value if isinstance(value, str) else ""
