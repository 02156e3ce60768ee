"""A whole xenpod-cri in this process, in front of a runtime that does as it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cri.delegate.config import DelegateConfig
from daemonkit.config import Seconds
from tests.support.cri.cri_node import Rig, node_config, rig
from tests.support.cri.other_runtime import OtherRuntime, other_runtime


@dataclass
class Mixed:
    """Both runtimes; ``ours.cri`` is the socket that callers have."""

    ours: Rig
    other: OtherRuntime


def delegate_config(path: Path, **fields: object) -> DelegateConfig:
    """One with patience for a machine that stands still."""
    values: dict[str, object] = {"endpoint": f"unix://{path}", "timeout": Seconds(60.0)}
    return replace(DelegateConfig(**values), **fields)  # type: ignore[arg-type]


@pytest.fixture
async def other(short_path: Path) -> AsyncIterator[OtherRuntime]:
    async with other_runtime(short_path / "other.sock") as made:
        yield made


@pytest.fixture
async def mixed(short_path: Path, other: OtherRuntime) -> AsyncIterator[Mixed]:
    config = replace(node_config(short_path), delegate=delegate_config(other.path))
    async with rig(short_path, config=config) as ours:
        yield Mixed(ours, other)
