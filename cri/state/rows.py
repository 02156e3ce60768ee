"""Records as rows and back."""

from __future__ import annotations

import json
from typing import Any

from cri.state.attachment import Attachment
from cri.state.container import Container, ContainerExit, ContainerImage, ContainerPhase
from cri.state.sandbox import Sandbox, SandboxPhase
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_SANDBOX = ("id", "phase", "created_ns", "handler", "config", "attachment", "death_reason", "kernel")
_CONTAINER = (
    "id", "sandbox_id", "phase", "created_ns", "started_ns", "config", "image_id", "image_reference",
    "log_path", "process", "stop_signal", "finished_ns", "exit_code", "reason", "message",
    "volume_images",
)  # fmt: skip


def _save(table: str, columns: tuple[str, ...]) -> str:
    """An upsert (not INSERT OR REPLACE, which deletes first and would break references)."""
    sets = ", ".join(f"{name} = excluded.{name}" for name in columns[1:])
    marks = ", ".join("?" * len(columns))
    names = ", ".join(columns)
    return f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {sets}"


SAVE_SANDBOX = _save("sandboxes", _SANDBOX)
SAVE_CONTAINER = _save("containers", _CONTAINER)
LOAD_SANDBOXES = f"SELECT {', '.join(_SANDBOX)} FROM sandboxes ORDER BY created_ns"
LOAD_CONTAINERS = f"SELECT {', '.join(_CONTAINER)} FROM containers ORDER BY created_ns"


def of_sandbox(sandbox: Sandbox) -> tuple[object, ...]:
    """In the order of the columns."""
    return (
        sandbox.id,
        sandbox.phase.value,
        sandbox.created_ns,
        sandbox.handler,
        sandbox.config.SerializeToString(),
        sandbox.attachment.to_json(),
        sandbox.death_reason,
        sandbox.kernel,
    )


def to_sandbox(row: tuple[Any, ...]) -> Sandbox:
    """The inverse of ``of_sandbox``; what SQLite holds was written by it."""
    return Sandbox(
        id=row[0],
        phase=SandboxPhase(row[1]),
        created_ns=row[2],
        handler=row[3],
        config=cri.PodSandboxConfig.FromString(row[4]),
        attachment=Attachment.from_json(row[5]),
        death_reason=row[6],
        kernel=row[7],
    )


def of_container(container: Container) -> tuple[object, ...]:
    """In the order of the columns."""
    end = container.exit
    return (
        container.id,
        container.sandbox_id,
        container.phase.value,
        container.created_ns,
        container.started_ns,
        container.config.SerializeToString(),
        container.image.id,
        container.image.reference,
        container.log_path,
        container.process,
        container.stop_signal,
        *((end.finished_ns, end.code, end.reason, end.message) if end else (None, None, None, None)),
        json.dumps(container.volume_images),
    )


def to_container(row: tuple[Any, ...]) -> Container:
    """The inverse of ``of_container``."""
    return Container(
        id=row[0],
        sandbox_id=row[1],
        phase=ContainerPhase(row[2]),
        created_ns=row[3],
        started_ns=row[4],
        config=cri.ContainerConfig.FromString(row[5]),
        image=ContainerImage(row[6], row[7]),
        log_path=row[8],
        process=row[9],
        stop_signal=row[10],
        exit=None if row[11] is None else ContainerExit(row[11], row[12], row[13], row[14]),
        volume_images=tuple(json.loads(row[15])),
    )
