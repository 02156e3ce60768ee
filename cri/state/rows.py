"""Translates records to rows and back."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from cattrs import Converter
from google.protobuf.message import DecodeError, Message

from cri.state.attachment import Attachment
from cri.state.container import Container
from cri.state.sandbox import Sandbox
from daemonkit.convert import exactly, expect, strict_converter, structure, wrong
from daemonkit.faults import Broken
from xenpod_proto.cri.v1 import runtime_pb2 as cri

T = TypeVar("T")

Row = tuple[Any, ...]
"""A row of SQLite, in the order of the columns."""

_SANDBOX = (
    "id", "phase", "created_ns", "handler", "config", "attachment", "death_reason", "kernel", "in_zone",
)  # fmt: skip
_CONTAINER = (
    "id", "sandbox_id", "phase", "created_ns", "started_ns", "config", "image_id", "image_reference",
    "log_path", "process", "stop_signal", "finished_ns", "exit_code", "reason", "message",
    "volume_images",
)  # fmt: skip

_Texts = tuple[str, ...]  # a column holds a JSON array

# Fields of a container's image and exit, and their columns.
_IMAGE = {"id": "image_id", "reference": "image_reference"}
_EXIT = {"finished_ns": "finished_ns", "code": "exit_code", "reason": "reason", "message": "message"}


def _save(table: str, columns: tuple[str, ...]) -> str:
    """An upsert.  INSERT OR REPLACE would delete first, and break references."""
    sets = ", ".join(f"{name} = excluded.{name}" for name in columns[1:])
    marks = ", ".join("?" * len(columns))
    names = ", ".join(columns)
    return f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {sets}"


SAVE_SANDBOX = _save("sandboxes", _SANDBOX)
SAVE_CONTAINER = _save("containers", _CONTAINER)
LOAD_SANDBOXES = f"SELECT {', '.join(_SANDBOX)} FROM sandboxes ORDER BY created_ns"
LOAD_CONTAINERS = f"SELECT {', '.join(_CONTAINER)} FROM containers ORDER BY created_ns"


def of_sandbox(sandbox: Sandbox) -> Row:
    body = _converter.unstructure(sandbox)
    return tuple(body[name] for name in _SANDBOX)


def to_sandbox(row: Row) -> Sandbox:
    """The inverse of ``of_sandbox``; Broken: not a sandbox's row."""
    return _read_body("pod sandbox", Sandbox, dict(zip(_SANDBOX, row, strict=True)))


def of_container(container: Container) -> Row:
    body = _converter.unstructure(container)
    for name, columns in (("image", _IMAGE), ("exit", _EXIT)):
        inner = body[name] or {}
        body.update({column: inner.get(key) for key, column in columns.items()})
    return tuple(body[name] for name in _CONTAINER)


def to_container(row: Row) -> Container:
    """The inverse of ``of_container``; Broken: not a container's row."""
    body = dict(zip(_CONTAINER, row, strict=True))
    body["image"] = {key: body[column] for key, column in _IMAGE.items()}
    ended = {key: body[column] for key, column in _EXIT.items()}
    body["exit"] = None if body["finished_ns"] is None else ended
    return _read_body("container", Container, body)


def _read_body(kind: str, cls: type[T], body: dict[str, Any]) -> T:
    try:
        return structure(_converter, cls, body)
    except ValueError as error:
        raise Broken("read state", f"{kind} {body['id']}", str(error)) from error


def _row_converter() -> Converter:
    converter = strict_converter(unknown_keys=True)
    for message in (cri.PodSandboxConfig, cri.ContainerConfig):
        converter.register_structure_hook(message, _message)
        converter.register_unstructure_hook(message, lambda message: message.SerializeToString())
    converter.register_structure_hook(Attachment, lambda text, _: Attachment.from_json(expect(str, text)))
    converter.register_unstructure_hook(Attachment, Attachment.to_json)
    texts = converter.get_structure_hook(_Texts)
    converter.register_structure_hook_func(
        exactly(_Texts), lambda text, _: texts(json.loads(expect(str, text)), _Texts)
    )
    converter.register_unstructure_hook_func(exactly(_Texts), json.dumps)
    return converter


def _message(data: object, cls: type[Message]) -> Message:
    try:
        return cls.FromString(expect(bytes, data))
    except DecodeError as error:
        raise wrong(f"not a {cls.__name__}: {error}") from error


_converter = _row_converter()
