"""Checks of a CreateContainer request: every value that cannot be honoured is refused by name."""

from __future__ import annotations

from cri.checks import host_devices
from cri.checks.fields import CREATE, PREFIX, check_map, check_name, check_path
from cri.checks.mounts import check_mounts
from cri.checks.security import check_security
from cri.checks.userns import pod_userns
from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_OOM_SCORE = 1000  # proc(5), oom_score_adj


def check_container(
    config: cri.ContainerConfig, pod: cri.PodSandboxConfig, *, host_is_zone: bool = False
) -> None:
    """Invalid, Refused or Unsupported for requests that cannot be honoured.

    ``host_is_zone``: the pod's handler gives the zone's namespaces to pods that ask for the host's.
    """
    check_name(CREATE, "metadata.name", config.metadata.name)
    check_map(CREATE, "labels", config.labels)
    check_map(CREATE, "annotations", config.annotations)
    _check_annotations(config)
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
    host_devices.check_devices(config)
    security = config.linux.security_context
    check_security(config.metadata.name, security, pod.linux.security_context, host_is_zone=host_is_zone)
    check_mounts(config.mounts, pod_userns(CREATE, config.metadata.name, security.namespace_options))


def _check_annotations(config: cri.ContainerConfig) -> None:
    """Invalid: a container has an annotation of ours.  Our annotations count only on pods."""
    for key in config.annotations:
        if key.startswith(PREFIX):
            cause = "a container has no annotations of this kind"
            raise Invalid(CREATE, f"annotation {key[:200]!r}", cause, "annotate its pod")
