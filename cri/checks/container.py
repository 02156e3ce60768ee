"""Checks of a CreateContainer request: what cannot be honoured is refused by name."""

from __future__ import annotations

import re

from cri.checks.fields import CREATE, check_map, check_name, check_path
from cri.checks.mounts import check_mounts
from cri.checks.security import check_security
from cri.checks.userns import pod_userns
from daemonkit.faults import Invalid, Refused, Unsupported
from xenpod_proto.cri.v1 import runtime_pb2 as cri

# The CDI specification's qualified names.
_CDI_NAME = re.compile(
    r"[A-Za-z]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?"
    r"=[A-Za-z0-9]([A-Za-z0-9_.:-]{0,251}[A-Za-z0-9])?"
)

_OOM_SCORE = 1000  # proc(5), oom_score_adj


def check(config: cri.ContainerConfig, pod: cri.PodSandboxConfig) -> None:
    """Invalid, Refused or Unsupported for what cannot be honoured."""
    check_name(CREATE, "metadata.name", config.metadata.name)
    check_map(CREATE, "labels", config.labels)
    check_map(CREATE, "annotations", config.annotations)
    if not config.image.image:
        raise Invalid(CREATE, config.metadata.name, "no image")
    if config.log_path:
        check_path(CREATE, "log_path", config.log_path, absolute=False)
    if config.HasField("windows"):
        raise Invalid(CREATE, config.metadata.name, "windows is set", "zones run Linux")
    if config.stop_signal not in cri.Signal.values():
        raise Invalid(CREATE, config.metadata.name, f"stop signal {config.stop_signal}: unknown")
    if abs(score := config.linux.resources.oom_score_adj) > _OOM_SCORE:
        cause = f"oom_score_adj {score} is not between -{_OOM_SCORE} and {_OOM_SCORE}"
        raise Invalid(CREATE, config.metadata.name, cause)
    _check_devices(config)
    check_security(config.metadata.name, config.linux.security_context, pod.linux.security_context)
    options = config.linux.security_context.namespace_options
    check_mounts(config.mounts, pod_userns(CREATE, config.metadata.name, options))


def _check_devices(config: cri.ContainerConfig) -> None:
    for device in config.devices:
        raise Unsupported(
            CREATE, f"device {device.container_path!r:.200}", "a device of the host is out of a zone's reach"
        )
    for claim in config.CDI_devices:
        if not _CDI_NAME.fullmatch(claim.name):
            raise Invalid(CREATE, f"CDI device {claim.name!r:.200}", "not of the form vendor.com/class=name")
        raise Refused(CREATE, f"CDI device {claim.name!r:.200}", "not known: zones have no CDI devices yet")
