"""Makes the request to CNI from a pod's configuration."""

from __future__ import annotations

import logging
from pathlib import Path

from cri.checks.fields import RUN
from cri.state.attachment import UNLIMITED, Attachment, BandwidthLimits, Chain, Json
from daemonkit.faults import Denied, Invalid, Refused
from daemonkit.logs import fields
from daemonkit.quantity import within
from xenpod_proto.cri.v1 import runtime_pb2 as cri

log = logging.getLogger(__name__)

INTERFACE = "eth0"
_BURST_BITS = 2**21, 2**31 - 1
"""Bounds of a burst in bits: some of the largest frames, and the plugin's limit."""
_BURST_PART = 10
_NEEDS = {"portMappings": "portmap"}
"""Capabilities that must not be left out silently, and the plugins that provide them."""
_BANDWIDTH = "bandwidth"
_MAX_RATE_BITS_PER_SECOND = 10**15


def attachment(
    sandbox_id: str,
    config: cri.PodSandboxConfig,
    chain: Chain,
    netns: Path,
    most: BandwidthLimits = UNLIMITED,
) -> Attachment:
    """The pod's attachment before ADD; Refused: the chain cannot satisfy the pod.

    A pod's bandwidth is a wish: a chain without a bandwidth plugin ignores the wish, as on every other
    runtime, and we log the fact.  A handler's bandwidth is a rule: without the plugin, Refused.  Denied: the
    pod wants more than its handler allows.
    """
    wanted = _runtime_config(config, most)
    _check_limits(config, chain, most)
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


def _check_limits(config: cri.PodSandboxConfig, chain: Chain, most: BandwidthLimits) -> None:
    if (most.ingress or most.egress) and _BANDWIDTH not in chain.capabilities:
        setting = f"handlers.{most.handler}.{'ingress' if most.ingress else 'egress'}_bandwidth"
        cause = f"{setting} of cri.toml is set, and network {chain.name} has no plugin that could hold it"
        raise Refused(
            "attach pod", config.metadata.name, cause, f"add the bandwidth plugin to {chain.source}"
        )


def _runtime_config(config: cri.PodSandboxConfig, most: BandwidthLimits) -> Json:
    wanted: dict[str, object] = {}
    if mappings := [_port(mapping) for mapping in config.port_mappings if mapping.host_port > 0]:
        wanted["portMappings"] = mappings
    if bandwidth := _bandwidth(config, most):
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


def _bandwidth(config: cri.PodSandboxConfig, most: BandwidthLimits) -> Json:
    """Bits per second from kubernetes.io/ingress-bandwidth and egress-bandwidth, or else the handler's."""
    found: dict[str, object] = {}
    for way, limit in (("ingress", most.ingress), ("egress", most.egress)):
        if rate := _annotated(config, way, limit, most.handler) or limit:
            found |= {f"{way}Rate": rate, f"{way}Burst": burst(rate)}
    return found


def _annotated(config: cri.PodSandboxConfig, way: str, limit: int, handler: str) -> int:
    """The pod's requested rate, or 0."""
    key = f"kubernetes.io/{way}-bandwidth"
    if key not in config.annotations:
        return 0
    try:
        rate = within(config.annotations[key], _MAX_RATE_BITS_PER_SECOND)
    except ValueError as error:
        raise Invalid("read annotation", key, str(error)) from None
    if 0 < limit < rate:
        cause = f"annotation {key}: {rate} bits per second are more than handlers.{handler}.{way}_bandwidth"
        raise Denied(RUN, config.metadata.name, f"{cause} of cri.toml, {limit}")
    return rate


def burst(rate: int) -> int:
    """Bits that may pass at once after a pause: a tenth of a second's, within the bounds.

    The bandwidth plugin requires a burst, but no annotation sets the burst.  The plugin holds back as much
    again in the host's memory.  The plugin's maximum would be 256 MiB of both, whatever the rate.
    """
    return min(max(rate // _BURST_PART, _BURST_BITS[0]), _BURST_BITS[1])
