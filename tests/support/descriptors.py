"""Descriptors of a .proto file as the published field tables write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

Table = dict[str, Any]

SCALARS = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


def syntax(file: FileDescriptor) -> str:
    found = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(found)
    return found.syntax


def every_message(file: FileDescriptor) -> Iterator[Descriptor]:
    """Nested messages and map entries too."""
    waiting = list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        waiting += message.nested_types
        yield message


def messages(file: FileDescriptor) -> Table:
    """Every message, field by field."""
    return {message.full_name: _table(message) for message in every_message(file)}


def wanted(tables: Table) -> Table:
    """The messages of published tables, with their fields by number."""
    return {name: _sorted(entry) for name, entry in tables["messages"].items()}


def enums(file: FileDescriptor) -> Table:
    """Every enumeration, value by value."""
    return {enum.full_name: {value.name: value.number for value in enum.values} for enum in _every_enum(file)}


def services(file: FileDescriptor) -> Table:
    """Every service, call by call."""
    return {
        name: [
            {"rpc": method.name, "request": method.input_type.full_name,
             "response": method.output_type.full_name}
            | ({"client_streaming": True} if method.client_streaming else {})
            | ({"server_streaming": True} if method.server_streaming else {})
            for method in service.methods
        ]
        for name, service in file.services_by_name.items()
    }  # fmt: skip


def _every_enum(file: FileDescriptor) -> Iterator[EnumDescriptor]:
    yield from file.enum_types_by_name.values()
    for message in every_message(file):
        yield from message.enum_types


def _row(field: FieldDescriptor) -> Table:
    """A field as in the tables: flags only if set."""
    presence = field.containing_oneof is not None and not field.is_repeated
    flags = {
        "repeated": field.is_repeated,
        "deprecated": field.GetOptions().deprecated,
        "presence": presence,
    }
    found = {"number": field.number, "name": field.name, "type": _type_of(field)}
    return found | {name: True for name, value in flags.items() if value}


def _type_of(field: FieldDescriptor) -> str:
    if field.message_type:
        return field.message_type.full_name
    if field.enum_type:
        return field.enum_type.full_name
    return SCALARS[field.type]


def _table(message: Descriptor) -> Table:
    fields = [_row(field) for field in sorted(message.fields, key=lambda field: field.number)]
    found: Table = {"fields": fields} if fields else {}
    return found | ({"map_entry": True} if message.GetOptions().map_entry else {})


def _sorted(entry: Table) -> Table:
    rows = sorted(entry.get("fields", []), key=lambda field: field["number"])
    return {**entry, "fields": rows} if rows else {k: v for k, v in entry.items() if k != "fields"}
