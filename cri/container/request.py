"""What of a CreateContainer request can be honoured; everything else is refused by name."""

from __future__ import annotations

from cri.checks import check_map, check_name, check_path
from cri.oci.values import CREATE
from daemonkit.faults import Invalid, Refused, Unsupported
from xenpod_proto.cri.v1 import runtime_pb2 as cri


def check(config: cri.ContainerConfig) -> None:
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
    _check_devices(config)
    _check_security(config.metadata.name, config.linux.security_context)


def _check_devices(config: cri.ContainerConfig) -> None:
    for mount in config.mounts:
        source = mount.host_path or f"image {mount.image.image}"
        raise Unsupported(
            CREATE, f"mount {mount.container_path!r:.200}", f"volumes ({source!r:.200}) are not there yet"
        )
    for device in config.devices:
        raise Unsupported(CREATE, f"device {device.container_path!r:.200}", "host devices are not there yet")
    for claim in config.CDI_devices:
        raise Unsupported(CREATE, f"CDI device {claim.name!r:.200}", "CDI devices are not there yet")


def _check_security(name: str, security: cri.LinuxContainerSecurityContext) -> None:
    options = security.namespace_options
    if security.privileged:
        raise Unsupported(
            CREATE, name, "privileged containers are not there yet", "add capabilities one by one"
        )
    if cri.NODE in (options.network, options.pid, options.ipc):
        raise Refused(CREATE, name, "it wants a namespace of the host, and its zone has its own kernel")
    if options.pid == cri.TARGET:
        raise Unsupported(CREATE, name, "another container's processes as target are not there yet")
    if options.HasField("userns_options") and options.userns_options.mode != cri.NODE:
        raise Unsupported(CREATE, name, "user namespaces are not there yet", "leave out hostUsers: false")
    profiles = (
        ("seccomp", security.seccomp, security.seccomp_profile_path),
        ("AppArmor", security.apparmor, security.apparmor_profile),
    )
    for kind, profile, old in profiles:
        if profile.profile_type == cri.SecurityProfile.Localhost or old.startswith("localhost/"):
            raise Unsupported(CREATE, name, f"{kind} profiles of one's own are not there yet")
    if any(getattr(security.selinux_options, key) for key in ("user", "role", "type", "level")):
        raise Unsupported(CREATE, name, "SELinux labels are not there: zones do not run SELinux")
    for field in ("masked_paths", "readonly_paths"):
        for path in getattr(security, field):
            check_path(CREATE, field, path, absolute=True)
