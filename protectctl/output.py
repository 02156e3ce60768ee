"""Prints answers for programs: ``--output json``, ``yaml`` and ``name``.

JSON and YAML have the field names of the contracts (protect.v1, xenpod.images.v1), all fields, and whole ids.
``protect schema`` prints the schema of each command's documents.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

FORMATS = ("table", "json", "yaml", "name")

Document = Message | Mapping[str, Any] | None
"""Printed as a JSON object or YAML document; None: nothing is printed."""


def plain(untrusted: str) -> str:
    """The text with control characters escaped: text from zones and registries could control a terminal."""
    if untrusted.isprintable():
        return untrusted
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in untrusted)


def structured(output: str, *documents: Document, names: Iterable[str] = ()) -> bool:
    """Print the documents, or only ``names``, one on each line.  False: the caller has to print a table."""
    if output == "table":
        return False
    if output == "name":
        sys.stdout.write("".join(f"{plain(name)}\n" for name in names))
        return True
    for document in documents:
        if document is not None:
            sys.stdout.write(_text(output, document, indent=2))
    return True


def event(output: str, document: Message, text: Callable[[], str], names: Iterable[str] = ()) -> None:
    """Print one document of a stream, and flush for waiting readers.  ``text``: its line in a table."""
    if output == "table":
        sys.stdout.write(f"{text()}\n")
    elif output == "name":
        sys.stdout.write("".join(f"{plain(name)}\n" for name in names))
    else:
        sys.stdout.write(_text(output, document, indent=None))
    sys.stdout.flush()


def as_dict(message: Message) -> dict[str, Any]:
    """All fields of a message, with the names of the contract."""
    found: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def _text(output: str, document: Message | Mapping[str, Any], indent: int | None) -> str:
    value = as_dict(document) if isinstance(document, Message) else dict(document)
    if output == "json":
        return json.dumps(value, indent=indent) + "\n"
    from ruamel.yaml import YAML  # a slow import, not needed for tables

    writer, text = YAML(), io.StringIO()
    writer.explicit_start = True
    writer.width = 1 << 16
    writer.dump(value, text)
    return text.getvalue()
