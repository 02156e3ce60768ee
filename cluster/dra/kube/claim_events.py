"""Events of claims and pods: why a claim was not prepared, for readers of the pod.

Source: events.k8s.io/v1, Event.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.client.connection import TIMEOUT_SECONDS, Purpose, api_client
from cluster.dra import dra_metrics
from cluster.dra.claims.claim import Consumer, WantedClaim
from daemonkit.faults import Fault

log = logging.getLogger(__name__)

_REASON, _ACTION = "PrepareClaimFailed", "Prepare"
_LONGEST_NOTE = 1024  # validation of Event.note
_LONGEST_NAME = 253
_QUEUE_EVENTS = 256
_SAME_SECONDS = 300.0
"""Seconds before the same refusal is reported again: the kubelet retries every few seconds."""
_REMEMBERED_EVENTS = 1024
_BURST, _PER_SECOND = 25.0, 0.2
_PODS = 4
"""Number of pods of a claim that get an event, at most."""


@dataclass(frozen=True, slots=True)
class Regarding:
    """The subject of an event."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class RefusalEvents:
    """Writes events: each once in a while, at a bounded rate.  Events over the rate are only in the log."""

    def __init__(self, kubeconfig: Path | None, driver: str, node: str) -> None:
        self._kubeconfig = kubeconfig
        self._driver = driver
        self._node = node
        self._queue: asyncio.Queue[tuple[Regarding, str]] = asyncio.Queue(_QUEUE_EVENTS)
        self._said: OrderedDict[bytes, float] = OrderedDict()
        self._tokens, self._counted = _BURST, time.monotonic()

    def tell(self, claim: WantedClaim, pods: Sequence[Consumer], cause: str) -> None:
        """Have events written on a claim and its pods; returns at once."""
        for about in _regarding(claim, pods[:_PODS]):
            if self._is_news(about, cause) and not self._queue.full():
                self._queue.put_nowait((about, cause))

    async def run(self) -> None:
        """Write for as long as the daemon runs; a refused event is logged and not written again."""
        while True:
            about, cause = await self._queue.get()
            try:
                await self._write(about, cause)
            except Fault as fault:
                log.warning("%s", fault)

    def _is_news(self, about: Regarding, cause: str) -> bool:
        now = time.monotonic()
        key = hashlib.sha256(f"{about.uid}/{cause}".encode()).digest()
        if now - self._said.get(key, -_SAME_SECONDS) < _SAME_SECONDS:
            return False
        self._tokens = min(_BURST, self._tokens + (now - self._counted) * _PER_SECOND)
        self._counted = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        self._said[key] = now
        self._said.move_to_end(key)
        if len(self._said) > _REMEMBERED_EVENTS:
            self._said.popitem(last=False)
        return True

    async def _write(self, about: Regarding, cause: str) -> None:
        from kubernetes_asyncio import client

        purpose = Purpose("write event of", f"{about.namespace}/{about.name}", _hint)
        with dra_metrics.request("write event"):
            async with api_client(self._kubeconfig, purpose) as link:
                await client.CustomObjectsApi(link).create_namespaced_custom_object(
                    *("events.k8s.io", "v1", about.namespace, "events", self._event(about, cause)),
                    _request_timeout=TIMEOUT_SECONDS,
                )

    def _event(self, about: Regarding, cause: str) -> dict[str, Any]:
        suffix = f".{secrets.token_hex(8)}"
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": about.name[: _LONGEST_NAME - len(suffix)] + suffix,
                "namespace": about.namespace,
            },
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": "Warning",
            "reason": _REASON,
            "action": _ACTION,
            "note": cause.encode()[:_LONGEST_NOTE].decode(errors="ignore"),
            "reportingController": self._driver,
            "reportingInstance": self._node[:128],
            "regarding": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
        }


def _regarding(claim: WantedClaim, pods: Sequence[Consumer]) -> Iterator[Regarding]:
    yield Regarding("resource.k8s.io/v1", "ResourceClaim", claim.namespace, claim.name, claim.uid)
    for pod in pods:
        yield Regarding("v1", "Pod", claim.namespace, pod.name, pod.uid)


def _hint(status: int) -> str:
    return "the driver needs the right to create events" if status in (401, 403) else ""
