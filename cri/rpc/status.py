"""The status of the node, and its conditions."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path

from cri.config import DEFAULT_HANDLER, CriConfig
from cri.ports import Images, PodNetwork
from cri.rpc import handlers
from cri.rpc.pod_cidr import PodCidr
from cri.zones.follow import HostInfo
from daemonkit.faults import Fault
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Status: whether pods can run now, with facts for operators."""

    config: CriConfig
    host: HostInfo
    network: PodNetwork
    images: Images
    pod_cidr: PodCidr

    async def status(self, verbose: bool) -> cri.StatusResponse:
        """RuntimeReady: protectd answers.  NetworkReady: a CNI configuration exists, with all its plugins.

        HandlersReady, a condition of our own: protectd has every handler's profile, every size fits its
        profile, and this host meets the requirements.  Without the default handler no ordinary pod can run:
        RuntimeReady is false, too.

        Two other conditions keep no pod from running.  HostPrepared: protectd's preflight found all settings
        of the host as they should be.  ZoneModePreferred: no handler's zones are PV only because the host
        lacks requirements of PVH.
        """
        fresh = verbose or any(handler.needs_fresh_facts for handler in self.config.handlers.values())
        host, trouble = await self._host(fresh=fresh)
        wrong = handlers.unusable(self.config, host) if host is not None else {}
        trouble = wrong.get(DEFAULT_HANDLER, trouble)
        fallbacks = handlers.fallbacks(self.config, host) if host is not None else {}
        reply = cri.StatusResponse(
            status=cri.RuntimeStatus(
                conditions=[
                    _condition(
                        "RuntimeReady",
                        "ProtectdNotReady" if host is None else "DefaultHandlerNotReady",
                        trouble,
                    ),
                    _condition("NetworkReady", "NetworkPluginNotReady", self._network_trouble()),
                    _condition("HandlersReady", "HandlerUnusable", _of_handlers(wrong)),
                    _condition("HostPrepared", "HostSettings", _of_settings(host)),
                    _condition("ZoneModePreferred", "FallsBackToPV", _of_handlers(fallbacks)),
                ]
            ),
            runtime_handlers=handlers.usable(self.config, host),
            features=cri.RuntimeFeatures(supplemental_groups_policy=True),
        )
        if verbose:
            reply.info.update(self._info(host))
        return reply

    async def _host(self, *, fresh: bool) -> tuple[pb.InfoResponse | None, str]:
        """The host's facts, or why they are unknown; constant facts are cached, since callers ask often."""
        try:
            return await self.host.info(fresh=fresh), ""
        except Fault as fault:
            return None, str(fault)

    def _network_trouble(self) -> str:
        try:
            self.network.check()
        except Fault as fault:
            return str(fault)
        return ""

    def _info(self, host: pb.InfoResponse | None) -> dict[str, str]:
        """The verbose information, with values in JSON as crictl expects."""
        return {
            "config": json.dumps(asdict(self.config), default=_plain),
            "versions": json.dumps(_versions(host)),
            "handlers": json.dumps(handlers.details(self.config, host)),
            "cni": json.dumps(self._cni()),
            "toolstack": json.dumps(_toolstack(host)),
            "pulls": json.dumps(self.images.pulls()),
            "notices": json.dumps(list(host.notices) if host else []),
        }

    def _cni(self) -> dict[str, object]:
        try:
            chain = self.network.check()
        except Fault as fault:
            return {"error": str(fault), "podCIDR": self.pod_cidr.cidr}
        return {
            "podCIDR": self.pod_cidr.cidr,
            "network": chain.name,
            "source": chain.source,
            "cniVersion": chain.version,
            "plugins": [plugin.type for plugin in chain.plugins],
        }


def _of_handlers(said: Mapping[str, str]) -> str:
    return "; ".join(f"handler {name}: {what}" for name, what in said.items())


def _of_settings(host: pb.InfoResponse | None) -> str:
    notices = host.preflight if host is not None else ()
    return "; ".join(
        f"{one.setting} is {one.value or 'not set'}, wanted {one.wanted} in {one.place}: {one.effect}"
        for one in notices
    )


def _condition(kind: str, reason: str, trouble: str) -> cri.RuntimeCondition:
    return cri.RuntimeCondition(
        type=kind, status=not trouble, reason=reason if trouble else "", message=trouble
    )


def _versions(host: pb.InfoResponse | None) -> dict[str, str]:
    return {
        "xenpod-cri": version("xenpod"),
        "protectd": host.version if host else "",
        "xen": host.xen_version if host else "",
        "cri": "v1",
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def _toolstack(host: pb.InfoResponse | None) -> dict[str, object]:
    if host is None:
        return {"error": "protectd does not answer"}
    return {
        "name": host.toolstack,
        "securityBoundary": host.security_boundary,
        "notices": list(host.notices),
        "xenVersion": host.xen_version,
        "capabilities": _capabilities(host),
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


def _capabilities(host: pb.InfoResponse) -> dict[str, bool]:
    """The capabilities of the host that handlers can require, and the operator's labels."""
    if not host.HasField("capabilities"):
        return {}
    known = host.capabilities
    declared = dict.fromkeys(known.labels, True)
    return declared | {name: getattr(known, name) for name in ("pv", "hvm", "hap", "iommu", "flask")}


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return str(value.value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
