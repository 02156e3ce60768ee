"""CRI v1 whole: our descriptors against the published field tables (cri-runtime-v1.json)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from xenpod_proto.cri.v1 import runtime_pb2, runtime_pb2_grpc

TABLES = json.loads((Path(__file__).parent / "cri-runtime-v1.json").read_text())
FILE = runtime_pb2.DESCRIPTOR
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


def every_message() -> Iterator[Descriptor]:
    """Nested ones and map entries too."""
    waiting = list(FILE.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        waiting += message.nested_types
        yield message


def every_enum() -> Iterator[EnumDescriptor]:
    yield from FILE.enum_types_by_name.values()
    for message in every_message():
        yield from message.enum_types


def type_of(field: FieldDescriptor) -> str:
    if field.message_type:
        return field.message_type.full_name
    if field.enum_type:
        return field.enum_type.full_name
    return SCALARS[field.type]


def row(field: FieldDescriptor) -> dict[str, object]:
    """A field as the tables write it: flags only where they are set."""
    flags = {"repeated": field.is_repeated, "deprecated": field.GetOptions().deprecated}
    found = {"number": field.number, "name": field.name, "type": type_of(field)}
    return found | {name: True for name, value in flags.items() if value}


def table(message: Descriptor) -> dict[str, object]:
    fields = [row(field) for field in sorted(message.fields, key=lambda field: field.number)]
    found: dict[str, object] = {"fields": fields} if fields else {}
    return found | ({"map_entry": True} if message.GetOptions().map_entry else {})


def wanted(entry: dict[str, object]) -> dict[str, object]:
    rows = sorted(entry.get("fields", []), key=lambda field: field["number"])  # type: ignore[call-overload]
    return {**entry, "fields": rows} if rows else {k: v for k, v in entry.items() if k != "fields"}


def test_package_and_syntax() -> None:
    assert FILE.package == TABLES["package"]
    file = descriptor_pb2.FileDescriptorProto()
    FILE.CopyToProto(file)
    assert file.syntax == TABLES["syntax"]


def test_every_message_field_by_field() -> None:
    ours = {message.full_name: table(message) for message in every_message()}
    theirs = {name: wanted(entry) for name, entry in TABLES["messages"].items()}
    assert len(theirs) > 190
    assert ours == theirs


def test_no_field_is_in_a_oneof_or_optional() -> None:
    """The tables have no word for either, so CRI v1 has none."""
    assert [message.full_name for message in every_message() if message.oneofs] == []


def test_every_enum_value_by_value() -> None:
    ours = {enum.full_name: {value.name: value.number for value in enum.values} for enum in every_enum()}
    assert ours == TABLES["enums"]


def test_every_rpc() -> None:
    ours = {
        name: [
            {"rpc": method.name, "request": method.input_type.full_name,
             "response": method.output_type.full_name}
            | ({"client_streaming": True} if method.client_streaming else {})
            | ({"server_streaming": True} if method.server_streaming else {})
            for method in service.methods
        ]
        for name, service in FILE.services_by_name.items()
    }  # fmt: skip
    assert ours == TABLES["services"]
    assert sum(map(len, ours.values())) == 41


def test_the_generated_servicers_have_every_rpc() -> None:
    for name, rpcs in TABLES["services"].items():
        servicer = getattr(runtime_pb2_grpc, f"{name}Servicer")
        assert [rpc["rpc"] for rpc in rpcs if not hasattr(servicer, rpc["rpc"])] == []
