"""Makes the request to CNI from a pod's configuration."""

from __future__ import annotations

import logging
from pathlib import Path

from cri.checks.quantity import quantity
from cri.state.attachment import Attachment, Chain, Json
from daemonkit.faults import Invalid, Refused
from daemonkit.logs import fields
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

INTERFACE = "eth0"
_BURST = 2**31 - 1
"""Bits.  The bandwidth plugin requires a burst, which has no annotation of its own (as in containerd)."""
_NEEDS = {"portMappings": "portmap"}
"""Capabilities that must not be left out silently, and the plugins that have them."""
_BANDWIDTH = "bandwidth"
_MAX_RATE = 10**15


def attachment(sandbox_id: str, config: cri.PodSandboxConfig, chain: Chain, netns: Path) -> Attachment:
    """The pod's attachment before ADD; Refused when the chain cannot give what the pod asks for.

    Bandwidth is a wish: a chain without a plugin for it ignores it, as on every other runtime, and we log it.
    """
    wanted = _runtime_config(config)
    for key, plugin in _NEEDS.items():
        if key in wanted and key not in chain.capabilities:
            cause = f"it wants {key}, which network {chain.name} has no plugin for"
            raise Refused(
                "attach pod", config.metadata.name, cause, f"add the {plugin} plugin to {chain.source}"
            )
    if _BANDWIDTH in wanted and _BANDWIDTH not in chain.capabilities:
        pod_name = f"{config.metadata.namespace}/{config.metadata.name}"
        log.warning(
            "bandwidth annotations are ignored: the network has no bandwidth plugin",
            extra=fields(pod=pod_name, sandbox=sandbox_id, network=chain.name, source=chain.source),
        )
    args = {
        "IgnoreUnknown": "1",
        "K8S_POD_NAMESPACE": config.metadata.namespace,
        "K8S_POD_NAME": config.metadata.name,
        "K8S_POD_INFRA_CONTAINER_ID": sandbox_id,
        "K8S_POD_UID": config.metadata.uid,
    }
    return Attachment(sandbox_id, netns, INTERFACE, chain, args, wanted)


def _runtime_config(config: cri.PodSandboxConfig) -> Json:
    wanted: dict[str, object] = {}
    if mappings := [_port(mapping) for mapping in config.port_mappings if mapping.host_port > 0]:
        wanted["portMappings"] = mappings
    if bandwidth := _bandwidth(config):
        wanted[_BANDWIDTH] = bandwidth
    if config.HasField("dns_config"):
        dns = config.dns_config
        wanted["dns"] = {
            "servers": list(dns.servers), "searches": list(dns.searches), "options": list(dns.options)
        }  # fmt: skip
    return wanted


def _port(mapping: cri.PortMapping) -> Json:
    return {
        "hostPort": mapping.host_port,
        "containerPort": mapping.container_port,
        "protocol": cri.Protocol.Name(mapping.protocol).lower(),
        "hostIP": mapping.host_ip,
    }


def _bandwidth(config: cri.PodSandboxConfig) -> Json:
    """kubernetes.io/ingress-bandwidth and egress-bandwidth, bits per second."""
    found: dict[str, object] = {}
    for way in ("ingress", "egress"):
        key = f"kubernetes.io/{way}-bandwidth"
        if key in config.annotations:
            try:
                rate = quantity(config.annotations[key], _MAX_RATE)
            except ValueError as error:
                raise Invalid("read annotation", key, str(error)) from None
            found |= {f"{way}Rate": rate, f"{way}Burst": _BURST}
    return found
