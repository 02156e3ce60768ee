"""Redacts messages: keeps numbers, and texts in fields known to be names.

The list says which fields to keep, not which to hide: a new or forgotten field is hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

NAMES = frozenset(
    {
        "id", "ids", "uuid", "uid", "pod_uid", "pod_sandbox_id", "container_id", "zone_id", "workload_id",
        "reservation_id", "exec_id", "name", "namespace", "hostname", "image", "reference", "digest",
        "runtime_handler", "profile", "interface", "netns_path", "host_path", "container_path", "path",
        "log_directory", "log_path", "type", "cpupool", "seclabel", "pod_cidr", "device", "devices",
    }
)  # fmt: skip
"""Fields with kept text."""
COMMANDS = frozenset({"cmd", "command", "args", "argv"})
"""Fields of command lines."""
HIDDEN = frozenset({"auth", "envs", "env"})
"""Fields hidden completely."""

_TEXT = 256
_ITEMS = 16
_DEPTH = 6
_FIELDS = 200
_WORDS = 32


def redacted(message: Message, *, commands: bool = False) -> dict[str, object]:
    """The redacted message as JSON; bounded in depth, fields and the length of each."""
    return _Redaction(commands).message(message, _DEPTH)


def ids(message: Message) -> dict[str, str]:
    """The texts of a message's own id fields."""
    found = message.ListFields()
    return {field.name: _clip(value) for field, value in found if _is_id(field) and isinstance(value, str)}


def _is_id(field: FieldDescriptor) -> bool:
    return field.name == "id" or field.name.endswith("_id")


class _Redaction:
    def __init__(self, commands: bool) -> None:
        self._commands = commands
        self._left = _FIELDS

    def message(self, message: Message, depth: int) -> dict[str, object]:
        kept: dict[str, object] = {}
        for field, value in message.ListFields():
            self._left -= 1
            if self._left < 0:
                kept["..."] = "too long"
                break
            kept[field.name] = self._field(field, value, depth)
        return kept

    def _field(self, field: FieldDescriptor, value: Any, depth: int) -> object:
        if field.name in HIDDEN:
            return "<hidden>"
        if _is_map(field):
            return f"<{len(value)} entries>"
        if not field.is_repeated:
            return self._one(field, value, depth)
        if field.name in COMMANDS:
            return self._command(value)
        items = [self._one(field, one, depth) for one in value[:_ITEMS]]
        return items if len(value) <= _ITEMS else [*items, f"<{len(value) - _ITEMS} more>"]

    def _one(self, field: FieldDescriptor, value: Any, depth: int) -> object:
        if field.message_type is not None:
            return self.message(value, depth - 1) if depth else "<too deep>"
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return known.name if known else value
        if isinstance(value, bytes):
            return f"<{len(value)} bytes>"
        if isinstance(value, str):
            return _clip(value) if field.name in NAMES and not _has_password(value) else "<hidden>"
        return value

    def _command(self, words: Iterable[str]) -> object:
        said = list(words)
        if not self._commands:
            return f"<{len(said)} words>"
        return list(_clipped(said))


def _clipped(words: list[str]) -> Iterator[str]:
    yield from (_clip(word) for word in words[:_WORDS])
    if len(words) > _WORDS:
        yield f"<{len(words) - _WORDS} more>"


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and kind.GetOptions().map_entry


def _has_password(text: str) -> bool:
    """Whether the text looks like ``user:password@host``; a digest may come after an @."""
    before, at, after = text.partition("@")
    return bool(at) and ":" in before and not after.startswith("sha")


def _clip(text: str) -> str:
    return text if len(text) <= _TEXT else text[:_TEXT] + "..."
