"""Makes CRI's messages about pod sandboxes."""

from __future__ import annotations

import json

from cri.state.records import has_id, has_labels
from cri.state.sandbox import Sandbox, SandboxPhase
from xenpod_proto.cri.v1 import runtime_pb2 as cri


def state(sandbox: Sandbox) -> cri.PodSandboxState.ValueType:
    """The state of a sandbox: READY only while its zone runs."""
    return cri.SANDBOX_READY if sandbox.phase is SandboxPhase.READY else cri.SANDBOX_NOTREADY


def selected(sandbox: Sandbox, asked: cri.PodSandboxFilter) -> bool:
    """Whether the filter of a list request selects a sandbox."""
    return (
        has_id(sandbox.id, asked.id)
        and has_labels(sandbox.labels, asked.label_selector)
        and (not asked.HasField("state") or asked.state.state == state(sandbox))
    )


def item(sandbox: Sandbox) -> cri.PodSandbox:
    """The item of a sandbox in a list."""
    return cri.PodSandbox(
        id=sandbox.id,
        metadata=sandbox.config.metadata,
        state=state(sandbox),
        created_at=sandbox.created_ns,
        labels=sandbox.config.labels,
        annotations=sandbox.config.annotations,
        runtime_handler=sandbox.handler,
    )


def status(sandbox: Sandbox) -> cri.PodSandboxStatus:
    """The full status of a sandbox, with addresses only while it has a network."""
    addresses = (
        () if sandbox.phase in (SandboxPhase.STOPPED, SandboxPhase.REMOVING) else sandbox.attachment.addresses
    )
    network = cri.PodSandboxNetworkStatus()
    if addresses:
        network.ip = addresses[0]
        network.additional_ips.extend(cri.PodIP(ip=address) for address in addresses[1:])
    options = sandbox.config.linux.security_context.namespace_options
    return cri.PodSandboxStatus(
        id=sandbox.id,
        metadata=sandbox.config.metadata,
        state=state(sandbox),
        created_at=sandbox.created_ns,
        network=network,
        linux=cri.LinuxPodSandboxStatus(namespaces=cri.Namespace(options=options)),
        labels=sandbox.config.labels,
        annotations=sandbox.config.annotations,
        runtime_handler=sandbox.handler,
    )


def info(sandbox: Sandbox) -> dict[str, str]:
    """The verbose information about a sandbox, for ``crictl inspectp``."""
    place = sandbox.attachment
    value = {
        "zone": sandbox.id,
        "phase": sandbox.phase.value,
        "deathReason": sandbox.death_reason,
        "networkNamespace": str(place.netns),
        "network": place.chain.name,
        "cniResult": place.result,
    }
    return {"info": json.dumps(value)}
