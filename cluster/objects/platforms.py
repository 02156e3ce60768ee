"""Platforms: kinds of nodes, and the classes of pods that run on them.

They are read from one node, or from a file with a table for each platform::

    [platforms.metal]
    handlers = ["xenpod", "fast"]
    labels = {"example.com/pool" = "metal"}
    taints = ["example.com/zones=true:NoSchedule"]
    overhead = {memory = "96Mi"}
    overheads = {fast = {memory = "64Mi"}}
    own_namespaces = ["fast"]
    delegate = {namespaces = ["kube-system", "calico-*"]}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cluster.objects import syntax
from cluster.objects.syntax import Taint
from daemonkit.config import Bytes, absolute, load_config, parse
from daemonkit.convert import WrongKey
from daemonkit.faults import Invalid
from daemonkit.namespaces import expression
from daemonkit.quantity import quantity_text as quantity_of

DEFAULT_HANDLER = "xenpod"
"""The handler of pods that name no handler."""

PLACEHOLDER = DEFAULT_HANDLER
"""The class in manifests for every platform; ``fill`` replaces the class by the class of a platform."""

ZONES_LABEL = "xenpod.dev/zones"
"""Key of the label and of the taint of a node that runs zones; the value is ``true``."""

PLATFORM_LABEL = "xenpod.dev/platform"
"""Key of the label of a platform's nodes; the value is the platform's name."""

DEFAULT_TAINTS = (f"{ZONES_LABEL}=true:NoSchedule",)

_NODE_LABELS = {ZONES_LABEL: "true"}
_MEMORY_OVERHEAD = Bytes(96 << 20)
_RUN_DIR = Path("/run/xenpod")
_SOCKET_NAME = "cri.sock"
_CLASS_LIMIT = 63
_OWN_NAMESPACES = "zone"  # as a handler's host_namespaces in cri.toml
_UNNAMED = ("delegate", "xenpod")
_HOST_NETWORK = ("refuse", "classless", "delegate")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DelegateRules:
    """Keys of ``[delegate]`` of cri.toml: which pods go to a node's other runtime, of which namespaces."""

    namespaces: tuple[str, ...] = ("kube-system",)
    default: str = "delegate"
    host_network: str = "classless"

    def __post_init__(self) -> None:
        if self.namespaces:
            _checked("namespaces", expression, self.namespaces)
        if self.default not in _UNNAMED:
            raise WrongKey("default", f"{self.default!r:.80} is not one of {', '.join(_UNNAMED)}")
        if self.host_network not in _HOST_NETWORK:
            raise WrongKey(
                "host_network", f"{self.host_network!r:.80} is not one of {', '.join(_HOST_NETWORK)}"
            )


@dataclass(frozen=True, slots=True)
class NodeDelegate(DelegateRules):
    """The table ``[delegate]`` of cri.toml.  An empty ``endpoint``: the node has no other runtime."""

    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class NodePlatform:
    """Nodes of one kind. ``name`` is "" if only a single kind exists.

    The first handler is the handler of ordinary pods. ``overhead`` maps resources to quantities;
    ``overheads`` has an entry for each handler with another overhead. ``own_namespaces`` are the handlers
    whose pods get the processes and IPC of their zone when they ask for the host's. ``delegate`` None: the
    nodes have no other runtime.
    """

    name: str
    handlers: tuple[str, ...]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    overhead: Mapping[str, str]
    cri_socket: Path
    overheads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    own_namespaces: frozenset[str] = frozenset()
    delegate: DelegateRules | None = None

    def class_name(self, handler: str) -> str:
        """The name of the RuntimeClass of a handler on this platform."""
        return f"{handler}-{self.name}" if self.name else handler

    @property
    def classes(self) -> dict[str, str]:
        """The handler of each RuntimeClass, by the name of the class."""
        return {self.class_name(handler): handler for handler in self.handlers}

    @property
    def default_class(self) -> str:
        """The class that replaces the placeholder on this platform."""
        return self.class_name(self.handlers[0])


@dataclass(frozen=True, slots=True)
class PlatformTable:
    """The table ``[platforms.NAME]``.  Without ``labels`` the nodes are labelled with the platform's name."""

    handlers: tuple[str, ...] = (DEFAULT_HANDLER,)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = DEFAULT_TAINTS
    overhead: Mapping[str, str] = field(default_factory=lambda: _memory(_MEMORY_OVERHEAD))
    overheads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    own_namespaces: tuple[str, ...] = ()
    delegate: DelegateRules | None = None
    cri_socket: Path = _RUN_DIR / _SOCKET_NAME

    def __post_init__(self) -> None:
        if not self.handlers:
            raise WrongKey("handlers", "it is empty")
        for index, handler in enumerate(self.handlers):
            _checked(f"handlers[{index}]", syntax.dns_label, handler)
            if handler in self.handlers[:index]:
                raise WrongKey(f"handlers[{index}]", f"{handler!r} is there twice")
        _checked("labels", syntax.labels, self.labels)
        _checked("taints", syntax.taints, self.taints)
        _checked("overhead", syntax.overhead, self.overhead)
        for handler, overhead in self.overheads.items():
            if handler not in self.handlers:
                raise WrongKey("overheads", f"{handler!r:.80} is not one of handlers")
            _checked(f"overheads.{handler}", syntax.overhead, overhead)
        for handler in self.own_namespaces:
            if handler not in self.handlers:
                raise WrongKey("own_namespaces", f"{handler!r:.80} is not one of handlers")
        absolute(self, "cri_socket")


@dataclass(frozen=True, slots=True)
class PlatformsFile:
    """The whole file of platforms."""

    platforms: Mapping[str, PlatformTable]

    def __post_init__(self) -> None:
        if not self.platforms:
            raise WrongKey("platforms", "it is empty")
        owners: dict[str, str] = {}
        for name, table in self.platforms.items():
            _checked("platforms", syntax.dns_label, name)
            for made in (f"{handler}-{name}" for handler in table.handlers):
                if len(made) > _CLASS_LIMIT:
                    raise WrongKey(f"platforms.{name}", f"its class {made} is longer than {_CLASS_LIMIT}")
                if owners.setdefault(made, name) != name:
                    raise WrongKey(f"platforms.{name}", f"platforms.{owners[made]} has the class {made}, too")


@dataclass(frozen=True, slots=True)
class HandlerFacts:
    """The keys of a handler in cri.toml, and ``error`` of Status: the reason why the handler is unusable."""

    memory: Bytes = Bytes(0)
    host_namespaces: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class ZoneOverhead:
    """The table ``[zone]`` of cri.toml."""

    memory_overhead: Bytes = _MEMORY_OVERHEAD


@dataclass(frozen=True, slots=True)
class NodeFile:
    """The keys of cri.toml that a cluster has to know; the rest is ignored."""

    run_dir: Path = _RUN_DIR
    socket: Path | None = None
    zone: ZoneOverhead = ZoneOverhead()
    delegate: NodeDelegate = field(default_factory=NodeDelegate)
    handlers: Mapping[str, HandlerFacts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        absolute(self, "run_dir", "socket")
        for name in self.handlers:
            _checked("handlers", syntax.dns_label, name)

    def platform(self, handlers: Collection[str]) -> NodePlatform:
        """The platform of this node. The default handler comes first.

        A handler with a size gives the size to zones of pods without limits, and the scheduler does not know
        the size. The overhead of the handler's class is the size, but at least a kernel's memory: xenpod-cri
        adds the overhead to the limits of pods that have limits.
        """
        own = [name for name, one in self.handlers.items() if one.host_namespaces == _OWN_NAMESPACES]
        least = self.zone.memory_overhead
        sizes = {name: one.memory for name, one in self.handlers.items() if one.memory > least}
        return NodePlatform(
            name="",
            handlers=_default_first(handlers),
            labels=_NODE_LABELS,
            taints=syntax.taints(DEFAULT_TAINTS),
            overhead=_memory(self.zone.memory_overhead),
            cri_socket=self.socket or self.run_dir / _SOCKET_NAME,
            overheads={name: _memory(size) for name, size in sizes.items() if name in handlers},
            own_namespaces=frozenset(own).intersection(handlers),
            delegate=self.delegate if self.delegate.endpoint else None,
        )


def of_file(path: Path) -> list[NodePlatform]:
    """Read the platforms of a file, in its order.  Invalid names the file and the key."""
    found = load_config(PlatformsFile, path)
    return [
        NodePlatform(
            name=name,
            handlers=table.handlers,
            labels=table.labels or {PLATFORM_LABEL: name},
            taints=syntax.taints(table.taints),
            overhead=table.overhead,
            cri_socket=table.cri_socket,
            overheads=table.overheads,
            own_namespaces=frozenset(table.own_namespaces),
            delegate=table.delegate,
        )
        for name, table in found.platforms.items()
    ]


def of_config(path: Path) -> NodePlatform:
    """Read the platform of a node from its cri.toml.  Invalid names the file and the key."""
    found = load_config(NodeFile, path, unknown_keys=True)
    return found.platform([DEFAULT_HANDLER, *found.handlers])


def of_status(info: Mapping[str, str]) -> tuple[NodePlatform, dict[str, str]]:
    """Read the platform of a node from ``info`` of xenpod-cri's verbose Status.

    Also returns the handlers that are left out, with the reasons.  Invalid: another runtime's Status, or no
    handler can be used.
    """
    tables = {key: _json(info, key) for key in ("config", "handlers")}
    try:
        config = parse(NodeFile, tables["config"], unknown_keys=True)
        shown = parse(NodeFile, {"handlers": tables["handlers"]}, unknown_keys=True).handlers
    except ValueError as error:
        raise Invalid("read status", "xenpod-cri", str(error)) from error
    unusable = {name: one.error for name, one in shown.items() if one.error}
    usable = [name for name in shown if name not in unusable]
    if not usable:
        said = "; ".join(f"{name}: {error}" for name, error in unusable.items())
        raise Invalid("read status", "xenpod-cri", f"no handler can be used: {said or 'there is none'}")
    return config.platform(usable), unusable


def _json(info: Mapping[str, str], key: str) -> dict[str, object]:
    try:
        found = json.loads(info[key])
    except (KeyError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise Invalid("read status", "xenpod-cri", f"it has no {key!r}", "is this xenpod-cri's socket?")
    return found


def _memory(size: int) -> dict[str, str]:
    return {"memory": quantity_of(size)}


def _default_first(handlers: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(handlers), key=lambda name: (name != DEFAULT_HANDLER, name)))


def _checked(key: str, check: Callable[[T], object], value: T) -> None:
    try:
        check(value)
    except ValueError as error:
        raise WrongKey(key, str(error)) from None
