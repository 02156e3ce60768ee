"""DRAResourceHealth, v1 and v1alpha1: whether the node's devices are usable, for the status of their pods.

Kubelets up to 1.36 ask for v1alpha1, later kubelets for v1 first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import ModuleType
from typing import Any

import grpc.aio

from daemonkit.faults import Exhausted
from xenpod_proto.kubelet import (
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
)

_AGAIN_SECONDS = 15.0
"""Seconds after which an unchanged state is repeated: by default the kubelet forgets the state after 30."""
_MOST_WATCHERS = 16


class DeviceHealths:
    """The state of the node's devices, the same for all; none until set."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._devices: tuple[str, ...] = ()
        self._cause = "protectd has not answered yet"
        self._since = time.time()
        self._changed = asyncio.Event()
        self._watchers = 0

    def set(self, devices: tuple[str, ...], cause: str) -> None:
        """Set the devices' names, and the reason why they are unusable; "": usable."""
        if (devices, cause) == (self._devices, self._cause):
            return
        if cause != self._cause:
            self._since = time.time()
        self._devices, self._cause = devices, cause
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, messages: ModuleType) -> AsyncGenerator[Any]:
        """Yield the state at once, after each change, and from time to time; ``messages``: a version."""
        if self._watchers >= _MOST_WATCHERS:
            raise Exhausted("watch health", self._pool, f"{_MOST_WATCHERS} watch it already")
        self._watchers += 1
        try:
            while True:
                changed = self._changed
                yield self._now(messages)
                try:
                    async with asyncio.timeout(_AGAIN_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._watchers -= 1

    def _now(self, pb: ModuleType) -> Any:
        state = pb.UNHEALTHY if self._cause else pb.HEALTHY
        return pb.NodeWatchResourcesResponse(
            devices=[
                pb.DeviceHealth(
                    device=pb.DeviceIdentifier(pool_name=self._pool, device_name=device),
                    health=state,
                    last_updated_time=int(self._since),
                    message=self._cause[:300],
                )
                for device in self._devices
            ]
        )


class _Health:
    """The call, for the messages of one API version."""

    def __init__(self, healths: DeviceHealths, messages: ModuleType) -> None:
        self._healths = healths
        self._messages = messages

    async def NodeWatchResources(  # noqa: N802
        self, request: Any, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        """The state of all devices, for as long as the kubelet listens."""
        async with aclosing(self._healths.watch(self._messages)) as states:
            async for state in states:
                yield state


class HealthV1(_Health, health_v1_pb2_grpc.DRAResourceHealthServicer):
    """v1.DRAResourceHealth."""

    def __init__(self, healths: DeviceHealths) -> None:
        super().__init__(healths, health_v1_pb2)


class HealthV1alpha1(_Health, health_v1alpha1_pb2_grpc.DRAResourceHealthServicer):
    """v1alpha1.DRAResourceHealth."""

    def __init__(self, healths: DeviceHealths) -> None:
        super().__init__(healths, health_v1alpha1_pb2)
