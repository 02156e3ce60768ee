"""Makes labels of a node from the Status of its xenpod-cri.

Syntax of labels: Kubernetes, "Labels and Selectors" (a name and a value have at most 63 characters).
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from daemonkit.faults import Unreachable
from daemonkit.logs import fields
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

Labels: TypeAlias = Mapping[str, str]

PREFIX = "xenpod.dev/"

# The labeller's own labels, because operators also set labels with this prefix, like a node's platform.
_FACTS = r"toolstack|security-boundary|user-namespaces|xen-version(?:\.major|\.minor)?"
_OWN = re.compile(rf"{re.escape(PREFIX)}(?:{_FACTS}|(?:handler|mode|can)\..+)")
_TEXT = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NOT_IN_TEXT = re.compile(r"[^-A-Za-z0-9_.]+")
_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})")
_LONGEST_CHARACTERS = 63
_HANDLERS = 256
"""Maximum of handlers with labels; every client that lists nodes reads the labels."""


def is_ours(key: str) -> bool:
    """Whether only the labeller sets and removes the label."""
    return _OWN.fullmatch(key) is not None


def labels_of(status: cri.StatusResponse) -> Labels:
    """The labels of a node with this verbose Status.

    Unreachable: protectd does not answer xenpod-cri, and the node's capabilities are unknown.
    """
    toolstack = _table(status, "toolstack")
    if not isinstance(toolstack.get("name"), str):
        cause = str(toolstack.get("error") or "xenpod-cri does not say which toolstack it has")[:200]
        raise Unreachable("read what this node can do", "", cause)
    found = {
        "toolstack": _text(toolstack["name"]),
        "security-boundary": _bool(toolstack.get("securityBoundary") is True),
        **_version(toolstack.get("xenVersion")),
    }
    served = {one.name: one.features for one in status.runtime_handlers}
    for name, details in sorted(_usable(_table(status, "handlers"))):
        if name in served:
            found[f"handler.{name}"] = "true"
            if isinstance(mode := details.get("mode"), str):
                found[f"mode.{_text(mode)}"] = "true"
            if served[name].user_namespaces:
                found["user-namespaces"] = "true"
    can = toolstack.get("capabilities")
    if isinstance(can, dict):
        found |= {f"can.{name}": "true" for name, yes in can.items() if yes is True}
    return {PREFIX + name: value for name, value in found.items() if value and _is_name(name)}


def _usable(handlers: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The usable handlers of xenpod itself; Status also lists the delegate's."""
    for name, details in list(handlers.items())[:_HANDLERS]:
        if isinstance(details, dict) and not details.get("error"):
            yield name, details


def _table(status: cri.StatusResponse, key: str) -> Mapping[str, Any]:
    try:
        found = json.loads(status.info.get(key, "{}"))
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _version(version: object) -> dict[str, str]:
    """Labels of Xen's version: as a text, and as numbers, which node affinity can compare (Gt, Lt)."""
    match = _VERSION.match(version) if isinstance(version, str) else None
    if match is None:
        return {}
    return {"xen-version": _text(match.string), "xen-version.major": match[1], "xen-version.minor": match[2]}


def _text(text: str) -> str:
    """The text as a label's value: forbidden characters become dashes; "" if nothing is left."""
    return _NOT_IN_TEXT.sub("-", text)[:_LONGEST_CHARACTERS].strip("-_.")


@functools.lru_cache(maxsize=1024)  # logs the warning about a name only once
def _is_name(name: str) -> bool:
    if _TEXT.fullmatch(name):
        return True
    log.warning("no label can have this name", extra=fields(name=name))
    return False


def _bool(value: bool) -> str:
    return "true" if value else "false"
