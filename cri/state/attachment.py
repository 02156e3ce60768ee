"""A pod's attachment to a network, with everything from ADD that DEL needs."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cattrs import Converter

from daemonkit.convert import exactly, expect, strict_converter, structure

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin of a chain, with its own configuration."""

    type: str
    config: Json
    capabilities: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Chain:
    """A network configuration: plugins called in order."""

    name: str
    version: str
    plugins: tuple[Plugin, ...]
    source: str = ""
    """The path of the configuration file."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities of all plugins together."""
        return frozenset().union(*(plugin.capabilities for plugin in self.plugins))


@dataclass(frozen=True, slots=True)
class BandwidthLimits:
    """Bits per second that pods of runtime handler ``handler`` may receive and send; 0: no limit."""

    handler: str = ""
    ingress: int = 0
    egress: int = 0


UNLIMITED = BandwidthLimits()


@dataclass(frozen=True, slots=True)
class Attachment:
    """A pod's place in a network."""

    container_id: str
    netns: Path
    interface: str
    chain: Chain
    args: Mapping[str, str]
    runtime_config: Json = field(default_factory=dict)
    result: Json | None = None
    """The last plugin's result; None until ADD has succeeded."""
    addresses: tuple[str, ...] = ()
    """The pod's addresses without prefix length, IPv4 first."""

    def to_json(self) -> str:
        """The attachment as JSON, for the store."""
        return json.dumps(_converter.unstructure(self))

    @classmethod
    def from_json(cls, text: str) -> Attachment:
        """The inverse of ``to_json``; ValueError names the wrong key."""
        return structure(_converter, cls, json.loads(text))


def addresses_of(result: Json, netns: Path, interface: str, limit: int = 64) -> tuple[str, ...]:
    """The addresses of ``interface`` in a result (CNI 0.3 to 1.1); ValueError: the result is malformed.

    An entry counts if its interface index is missing, or means the interface in the namespace.
    """
    interfaces = _list(result, "interfaces", limit)
    found: list[ipaddress.IPv4Interface | ipaddress.IPv6Interface] = []
    for entry in _list(result, "ips", limit):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("address"), str):
            raise ValueError(f"ips: {entry!r:.200} has no address")
        index = entry.get("interface")
        if index is not None and not _is_ours(interfaces, index, netns, interface):
            continue
        found.append(ipaddress.ip_interface(str(entry["address"])))
    found.sort(key=lambda address: address.version)
    return tuple(str(address.ip) for address in found)


def _list(result: Json, key: str, limit: int) -> list[object]:
    value = result.get(key) or []
    if not isinstance(value, list) or len(value) > limit:
        raise ValueError(f"{key}: not an array of at most {limit}")
    return value


def _is_ours(interfaces: list[object], index: object, netns: Path, interface: str) -> bool:
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(interfaces):
        raise ValueError(f"ips: interface {index!r:.50} does not exist")
    entry = interfaces[index]
    if not isinstance(entry, Mapping):
        raise ValueError(f"interfaces: {entry!r:.200} is not an object")
    return entry.get("name") == interface and entry.get("sandbox") == str(netns)


def _json_converter() -> Converter:
    """A converter without changes to the plugins' own configuration and results."""
    converter = strict_converter(unknown_keys=True)
    converter.register_structure_hook_func(exactly(Json), lambda value, _: expect(dict, value))
    converter.register_unstructure_hook_func(exactly(Json), lambda value: value)
    return converter


_converter = _json_converter()
