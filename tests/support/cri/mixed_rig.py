"""A whole xenpod-cri in this process, in front of a scripted runtime."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from cri.delegate.config import DelegateConfig
from daemonkit.config import Seconds
from tests.support.cri.cri_node import Rig, node_config, rig
from tests.support.cri.other_runtime import OtherRuntime
from tests.support.waiting import until
from xenpod_proto.cri.v1 import runtime_pb2 as cri


@dataclass
class Mixed:
    """Both runtimes; ``ours.cri`` is the callers' client."""

    ours: Rig
    other: OtherRuntime


def delegate_config(path: Path, **fields: object) -> DelegateConfig:
    """A configuration with long timeouts, for a stalling machine; the pods of ``default`` may use it."""
    values: dict[str, object] = {"endpoint": f"unix://{path}", "timeout": Seconds(60.0)}
    values |= {"namespaces": ("kube-system", "default"), **fields}
    return DelegateConfig(**values)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def in_front_of(folder: Path, path: Path, **fields: object) -> AsyncIterator[Rig]:
    """Run a xenpod-cri whose delegate listens on ``path``, now or later."""
    config = replace(node_config(folder), delegate=delegate_config(path, **fields))
    async with rig(folder, config=config) as ours:
        yield ours


async def condition(ours: Rig, kind: str = "DelegateReady") -> cri.RuntimeCondition:
    """Get a condition of Status."""
    reply = await ours.cri.Status(cri.StatusRequest())
    found: cri.RuntimeCondition = next(one for one in reply.status.conditions if one.type == kind)
    return found


async def becomes_ready(ours: Rig, ready: bool = True) -> None:
    """Wait until xenpod-cri has noticed that the delegate answers, or does not."""

    async def noticed() -> bool:
        return (await condition(ours)).status is ready

    await until(noticed)
