"""Status: whether pods can run now, and what an operator should know."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from google.protobuf.json_format import MessageToDict

from cri.checks.handlers import trouble as handler_trouble
from cri.runtime import Runtime
from daemonkit.faults import Fault
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


async def status(runtime: Runtime, verbose: bool) -> cri.StatusResponse:
    """RuntimeReady: protectd answers.  NetworkReady: there is a CNI configuration with all its plugins."""
    host, trouble = await _host(runtime, fresh=verbose)
    reply = cri.StatusResponse(
        status=cri.RuntimeStatus(
            conditions=[
                _condition("RuntimeReady", "ProtectdNotReady", trouble),
                _condition("NetworkReady", "NetworkPluginNotReady", _network_trouble(runtime)),
            ]
        ),
        runtime_handlers=_handlers(runtime, host),
        features=cri.RuntimeFeatures(supplemental_groups_policy=True),
    )
    if verbose:
        reply.info.update(_info(runtime, host))
    return reply


async def _host(runtime: Runtime, *, fresh: bool) -> tuple[pb.InfoResponse | None, str]:
    """The host, or why it is not known.  Cached where it does not change: the kubelet asks all the time."""
    try:
        return await runtime.host.info(fresh=fresh), ""
    except Fault as fault:
        return None, str(fault)


def _network_trouble(runtime: Runtime) -> str:
    try:
        runtime.network.check()
    except Fault as fault:
        return str(fault)
    return ""


def _condition(kind: str, reason: str, trouble: str) -> cri.RuntimeCondition:
    return cri.RuntimeCondition(
        type=kind, status=not trouble, reason=reason if trouble else "", message=trouble
    )


def _handlers(runtime: Runtime, host: pb.InfoResponse | None) -> list[cri.RuntimeHandler]:
    """The handlers that pods can have; the first one is the default, ""."""
    if host is None:
        return []
    handlers = runtime.config.handlers.items()
    names = sorted(name for name, handler in handlers if not handler_trouble(handler, host))
    features = cri.RuntimeHandlerFeatures(
        recursive_read_only_mounts=True, user_namespaces=host.user_namespaces
    )
    return [cri.RuntimeHandler(name=name, features=features) for name in ["", *names]]


def _info(runtime: Runtime, host: pb.InfoResponse | None) -> dict[str, str]:
    """Each value is JSON, as crictl expects."""
    return {
        "config": json.dumps(asdict(runtime.config), default=_plain),
        "versions": json.dumps(_versions(host)),
        "handlers": json.dumps(_handler_details(runtime, host)),
        "cni": json.dumps(_cni(runtime)),
        "toolstack": json.dumps(_toolstack(host)),
        "pulls": json.dumps(runtime.images.pulls()),
        "notices": json.dumps(list(host.notices) if host else []),
    }


def _versions(host: pb.InfoResponse | None) -> dict[str, str]:
    return {
        "xenpod-cri": version("xenpod"),
        "protectd": host.version if host else "",
        "xen": host.xen_version if host else "",
        "cri": "v1",
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def _handler_details(runtime: Runtime, host: pb.InfoResponse | None) -> dict[str, object]:
    """All handlers; for those that cannot be used, the reason."""
    usable = {handler.name: handler.features for handler in _handlers(runtime, host)}
    details: dict[str, object] = {}
    for name, handler in runtime.config.handlers.items():
        if name in usable:
            features = MessageToDict(usable[name], always_print_fields_with_no_presence=True)
            details[name] = {"profile": handler.profile, "features": features}
        else:
            cause = "protectd does not answer" if host is None else handler_trouble(handler, host)
            details[name] = {"profile": handler.profile, "error": cause}
    return details


def _cni(runtime: Runtime) -> dict[str, object]:
    try:
        chain = runtime.network.check()
    except Fault as fault:
        return {"error": str(fault), "podCIDR": runtime.kubelet.pod_cidr}
    return {
        "podCIDR": runtime.kubelet.pod_cidr,
        "network": chain.name,
        "source": chain.source,
        "cniVersion": chain.version,
        "plugins": [plugin.type for plugin in chain.plugins],
    }


def _toolstack(host: pb.InfoResponse | None) -> dict[str, object]:
    if host is None:
        return {"error": "protectd does not answer"}
    return {
        "name": host.toolstack,
        "securityBoundary": host.security_boundary,
        "notices": list(host.notices),
        "xenVersion": host.xen_version,
        "protectdVersion": host.version,
        "memory": {
            "totalBytes": host.memory.total_bytes,
            "reservedBytes": host.memory.reserved_bytes,
            "freeBytes": host.memory.free_bytes,
        },
        "cpus": host.cpus,
        "profiles": list(host.profiles),
        "unknownDomains": list(host.unknown_domains),
    }


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
