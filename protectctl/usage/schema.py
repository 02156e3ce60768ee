"""``protect schema``: the format of ``--output json`` and ``yaml`` documents, as JSON Schema.

The schemas are made from the contracts' descriptors, and therefore always agree with the documents.  Sources:
the JSON mapping of proto3, JSON Schema draft 2020-12.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from protectctl.command_errors import Command, CommandFailed
from protectctl.usage.verbs import named
from xenpod_proto.images.v1 import images_pb2 as images
from xenpod_proto.protect.v1 import protect_pb2 as pb
from xenpod_proto.protect.v1 import reservations_pb2 as reservations

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_INTEGERS = {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32}
_LONG = {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}
_NUMBERS = {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}

MESSAGES: Mapping[str, tuple[Descriptor, ...]] = {
    "zone list": (pb.ListZonesResponse.DESCRIPTOR,),
    "zone list --strangers": (pb.ListStrangersResponse.DESCRIPTOR,),
    "zone inspect": (pb.Zone.DESCRIPTOR, pb.ZoneFactsResponse.DESCRIPTOR, pb.ZoneStatsResponse.DESCRIPTOR),
    "zone create": (pb.Zone.DESCRIPTOR,),
    "zone resize": (pb.Zone.DESCRIPTOR,),
    "zone events": (pb.WatchEvent.DESCRIPTOR,),
    "zone top": (pb.ZoneStatsResponse.DESCRIPTOR,),
    "workload list": (pb.ListWorkloadsResponse.DESCRIPTOR,),
    "workload inspect": (pb.Workload.DESCRIPTOR,),
    "device list": (pb.ListDevicesResponse.DESCRIPTOR,),
    "device attach": (pb.Device.DESCRIPTOR,),
    "reservation list": (reservations.ListReservationsResponse.DESCRIPTOR,),
    "host": (pb.InfoResponse.DESCRIPTOR,),
    "host info": (pb.InfoResponse.DESCRIPTOR,),
    "host capacity": (reservations.Capacity.DESCRIPTOR,),
    "watch": (pb.WatchEvent.DESCRIPTOR,),
    "image list": (images.ListResponse.DESCRIPTOR,),
    "image pull": (images.Image.DESCRIPTOR,),
    "image import": (images.ImportResponse.DESCRIPTOR,),
    "image tag": (images.TagResponse.DESCRIPTOR,),
    "image untag": (images.UntagResponse.DESCRIPTOR,),
    "image remove": (images.RemoveResponse.DESCRIPTOR,),
    "image inspect": (images.InspectResponse.DESCRIPTOR,),
    "image verify": (images.VerifyEvent.DESCRIPTOR,),
    "image gc": (images.CollectResponse.DESCRIPTOR,),
    "image prune": (images.CollectResponse.DESCRIPTOR,),
    "image list-kernels": (images.ListKernelsResponse.DESCRIPTOR,),
    "image watch": (images.WatchPullsEvent.DESCRIPTOR,),
}
"""The messages printed by a command, a document each, in this order; later messages may be missing."""

_HANDLERS: Schema = {"handlers": {"type": ["object", "null"], "description": "null: xenpod-cri is away"}}
_DOCUMENTS: Schema = {"config": {"type": "object"}, "manifest": {"type": "object"}}
MORE: Mapping[str, Schema] = {"host": _HANDLERS, "host info": _HANDLERS, "image inspect": _DOCUMENTS}
"""Keys that are missing or different in the message."""

_TEXT: Schema = {"type": "string"}
_AMOUNT: Schema = {"type": "integer", "minimum": 0}
OWN: Mapping[str, Schema] = {
    "doctor": {
        "type": "object",
        "required": ["checks"],
        "properties": {
            "checks": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["check", "state", "says", "fix"],
                    "properties": {
                        "check": _TEXT,
                        "state": {"enum": ["ok", "warning", "failed", "unknown"]},
                        "says": _TEXT,
                        "fix": _TEXT,
                    },
                },
            }
        },
    },
    "host overhead": {
        "type": "object",
        "required": ["zones", "parts", "podFixed"],
        "properties": {
            "zones": _AMOUNT,
            "parts": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["part", "bytes"],
                    "properties": {"part": _TEXT, "bytes": _AMOUNT},
                },
            },
            "podFixed": {
                "type": "object",
                "required": ["memory", "cpu"],
                "properties": {"memory": _TEXT, "cpu": _TEXT},
            },
        },
    },
}
"""Documents of commands without a message."""


def add_arguments(noun: argparse.ArgumentParser) -> None:
    text = 'a command, such as "zone list"; default: all'
    named(noun, "schema").add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help=text)


async def schema(options: argparse.Namespace) -> None:
    """Print the schema of a command's documents, or an object of all.  CommandFailed: no documents."""
    known = [*MESSAGES, *OWN]
    command = " ".join(options.words)
    if command and command not in known:
        raise CommandFailed(f"{command!r:.80} prints no documents; these do: {', '.join(known)}")
    found = of_command(command) if command else {one: of_command(one) for one in known}
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def of_command(command: str) -> Schema:
    """The schema of each document of the command.  Later versions only add keys."""
    if command in OWN:
        return {"$schema": _DIALECT, "title": f"protect {command}", **OWN[command]}
    defined: dict[str, Schema] = {}
    kinds = [{"$ref": _define(message, defined)} for message in MESSAGES[command]]
    if command in MORE:
        own = defined[MESSAGES[command][0].full_name]
        own["properties"] |= MORE[command]
        own["required"] = sorted({*own["required"], *MORE[command]})
    document = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return {"$schema": _DIALECT, "title": f"protect {command}", **document, "$defs": defined}


def _define(message: Descriptor, defined: dict[str, Schema]) -> str:
    """Add the message, and the messages in it, to ``defined``; returns its reference."""
    name = message.full_name
    if name not in defined:
        defined[name] = {}  # messages may contain themselves
        defined[name] |= {
            "type": "object",
            "properties": {field.name: _field(field, defined) for field in message.fields},
            "required": [field.name for field in message.fields if not field.has_presence],
        }
    return f"#/$defs/{name}"


def _field(field: FieldDescriptor, defined: dict[str, Schema]) -> Schema:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _value(message.fields_by_name["value"], defined)}
    value = _value(field, defined)
    return {"type": "array", "items": value} if field.is_repeated else value


def _value(field: FieldDescriptor, defined: dict[str, Schema]) -> Schema:
    kind = field.cpp_type
    if field.message_type is not None:
        return {"$ref": _define(field.message_type, defined)}
    if field.enum_type is not None:
        # A later daemon may send the number of a value without a name here.
        return {"anyOf": [{"enum": [value.name for value in field.enum_type.values]}, {"type": "integer"}]}
    if kind in _INTEGERS:
        return {"type": "integer"}
    if kind in _LONG:
        return {"type": "string", "pattern": "^-?[0-9]+$"}
    if kind in _NUMBERS:
        return {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return {"type": "boolean"}
    return {"type": "string", "contentEncoding": "base64"} if field.type == field.TYPE_BYTES else _TEXT


COMMANDS: Mapping[str, Command] = {"schema": schema}
