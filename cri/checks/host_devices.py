"""Host devices for pods and containers: by name, or block volumes by their paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from cri.checks.fields import CREATE, ELSEWHERE, RUN, check_path
from cri.checks.userns import pod_userns
from cri.config import DEVICES, HandlerConfig
from daemonkit.faults import Invalid, Refused
from xenpod_proto.cri.v1 import runtime_pb2 as cri
from xenpod_proto.protect.v1 import protect_pb2 as pb

NODES = "/dev/xenpod/"
"""Directory of named devices in a container; the names in host paths below it come from device plugins."""

_KIND = "xenpod.dev/device"
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_PERMISSIONS = re.compile(r"[rwm]{0,3}")
_MOST_DEVICES = 32

# The CDI specification's qualified names.
_CDI_NAME = re.compile(
    r"[A-Za-z]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?"
    r"=[A-Za-z0-9]([A-Za-z0-9_.:-]{0,251}[A-Za-z0-9])?"
)
_USERNS = "a pod with a user namespace (hostUsers: false) can have no devices: its root owns none"
_FOREIGN = (
    "this node runs a pod in a virtual machine, which can be given the devices that the operator has named,"
    f" as {_KIND}=NAME, and no others"
)


def of_pod(notes: Mapping[str, str], handler: HandlerConfig) -> tuple[str, ...]:
    """The names of a zone's devices at its start.  Invalid: an annotation is malformed."""
    noted = [name.strip() for name in notes.get(DEVICES, "").split(",") if name.strip()]
    for name in noted:
        _check_name(f"annotation {DEVICES}", name)
    if len(noted) > _MOST_DEVICES:
        raise Invalid(RUN, f"annotation {DEVICES}", f"{len(noted)} names are more than {_MOST_DEVICES}")
    return tuple(dict.fromkeys((*handler.devices, *noted)))


def check_pod(config: cri.PodSandboxConfig, handler: HandlerConfig) -> None:
    """Invalid: a name is malformed; Refused: the pod has a user namespace."""
    names = of_pod(config.annotations, handler)
    options = config.linux.security_context.namespace_options
    if names and pod_userns(RUN, config.metadata.name, options):
        raise Refused(RUN, config.metadata.name, f"{_USERNS} ({', '.join(names)})")


def check_devices(config: cri.ContainerConfig) -> None:
    """Check a container's devices.  Invalid, Refused; protectd checks whether the host has the device."""
    for device in config.devices:
        check_path(CREATE, "device on the host", device.host_path, absolute=True)
        check_path(CREATE, "device in the container", device.container_path, absolute=True)
        if device.host_path.startswith(NODES):
            _check_name(f"device {device.host_path!r:.200}", device.host_path.removeprefix(NODES))
        if not _PERMISSIONS.fullmatch(device.permissions):
            cause = f"permissions {device.permissions!r:.20} are not of r, w and m"
            raise Invalid(CREATE, f"device {device.container_path!r:.200}", cause)
    for claim in config.CDI_devices:
        if not _CDI_NAME.fullmatch(claim.name):
            raise Invalid(CREATE, f"CDI device {claim.name!r:.200}", "not of the form vendor.com/class=name")
        kind, _, name = claim.name.partition("=")
        if kind != _KIND:
            raise Refused(CREATE, f"CDI device {claim.name!r:.200}", _FOREIGN, ELSEWHERE)
        _check_name(f"CDI device {claim.name!r:.200}", name)
    asks = config.devices or config.CDI_devices
    if asks and pod_userns(CREATE, config.metadata.name, config.linux.security_context.namespace_options):
        raise Refused(CREATE, config.metadata.name, _USERNS)


def of_container(
    config: cri.ContainerConfig, of_pod: Iterable[str], uid: int, gid: int
) -> list[pb.WorkloadDevice]:
    """Devices for the request to protectd; ``of_pod``: names; ``uid``, ``gid``: owner of the nodes."""
    asked = [_device(one) for one in config.devices]
    names = [*of_pod, *(claim.name.partition("=")[2] for claim in config.CDI_devices)]
    asked += [pb.WorkloadDevice(name=name, container_path=NODES + name) for name in names]
    made = {device.container_path: device for device in reversed(asked)}  # the first at a path counts
    for device in made.values():
        device.uid, device.gid = uid, gid
    return list(reversed(made.values()))


def _device(asked: cri.Device) -> pb.WorkloadDevice:
    named = asked.host_path.startswith(NODES)
    return pb.WorkloadDevice(
        name=asked.host_path.removeprefix(NODES) if named else "",
        host_path="" if named else asked.host_path,
        container_path=asked.container_path,
        readonly=bool(asked.permissions) and "w" not in asked.permissions,
    )


def _check_name(subject: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Invalid("find device", subject, f"{name!r:.80} is not 1 to 63 of [a-z0-9._-]")
