"""Checks of a container's security context: what cannot be honoured is refused by name.

Profiles (seccomp, AppArmor) come in a message of CRI, or in its deprecated text.
"""

from __future__ import annotations

from cri.checks.fields import CREATE, check_path
from cri.checks.userns import container_userns
from daemonkit.faults import Invalid, Refused, Unsupported
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_LOCAL = "localhost/"
_DEFAULTS = ("runtime/default", "docker/default")
Type = cri.SecurityProfile


def check_security(
    name: str, security: cri.LinuxContainerSecurityContext, pod: cri.LinuxSandboxSecurityContext
) -> None:
    """Invalid, Refused or Unsupported for what cannot be honoured; ``pod``: its sandbox's."""
    if security.privileged and not pod.privileged:
        raise Refused(
            CREATE, name, "privileged, and its pod sandbox is not", "run the sandbox with privileged set"
        )
    _check_namespaces(name, security.namespace_options)
    container_userns(CREATE, name, security.namespace_options, pod.namespace_options)
    _check_apparmor(name, security)
    if any(getattr(security.selinux_options, key) for key in ("user", "role", "type", "level")):
        raise Unsupported(CREATE, name, "SELinux labels are not there: zones do not run SELinux")
    if security.supplemental_groups_policy not in cri.SupplementalGroupsPolicy.values():
        raise Invalid(
            CREATE, name, f"supplemental groups policy {security.supplemental_groups_policy}: unknown"
        )
    for field in ("masked_paths", "readonly_paths"):
        for path in getattr(security, field):
            check_path(CREATE, field, path, absolute=True)


def _check_namespaces(name: str, options: cri.NamespaceOption) -> None:
    """NODE means the zone's processes and IPC; the host's network is out of a zone's reach."""
    known = cri.NamespaceMode.values()
    if any(mode not in known for mode in (options.network, options.pid, options.ipc)):
        raise Invalid(CREATE, name, "an unknown namespace mode")
    if options.network == cri.NODE:
        raise Refused(CREATE, name, "it wants the host's network, and its zone has its own kernel")
    if options.network != cri.POD:
        raise Invalid(CREATE, name, "network namespace mode: neither POD nor NODE")
    if options.ipc == cri.TARGET:
        raise Invalid(CREATE, name, "IPC namespace mode: TARGET is for processes alone")
    if (options.pid == cri.TARGET) != bool(options.target_id):
        raise Invalid(CREATE, name, "target_id and the process namespace mode TARGET go together")


def _check_apparmor(name: str, security: cri.LinuxContainerSecurityContext) -> None:
    """RuntimeDefault means no profile: the zone confines a container."""
    message = security.apparmor if security.HasField("apparmor") else None
    asked = chosen("AppArmor", message, security.apparmor_profile)
    if asked.profile_type == cri.SecurityProfile.Localhost:
        raise Refused(
            CREATE,
            f"AppArmor profile {asked.localhost_ref!r:.80}",
            "not loaded: zones have no profiles loaded",
        )


def chosen(kind: str, profile: cri.SecurityProfile | None, old: str) -> cri.SecurityProfile:
    """The profile asked for: ``profile``, else the text ``old``, else Unconfined.  Invalid: malformed."""
    asked = profile if profile is not None else _of_text(kind, old)
    if asked.profile_type not in Type.ProfileType.values():
        raise Invalid(CREATE, f"{kind} profile type {asked.profile_type}", "unknown")
    if asked.profile_type != Type.Localhost:
        if asked.localhost_ref:
            raise Invalid(CREATE, f"{kind} profile", "localhost_ref is set, and its type is not Localhost")
        return asked
    reference = asked.localhost_ref.removeprefix(_LOCAL)
    if not reference:
        raise Invalid(CREATE, f"{kind} profile", "its type is Localhost, and localhost_ref is empty")
    return Type(profile_type=Type.Localhost, localhost_ref=reference)


def local_path(kind: str, asked: cri.SecurityProfile) -> str:
    """The file of a Localhost profile; Invalid unless its path is absolute and clean."""
    check_path(CREATE, f"{kind} profile", asked.localhost_ref, absolute=True)
    return asked.localhost_ref


def _of_text(kind: str, old: str) -> cri.SecurityProfile:
    if old in ("", "unconfined"):
        return Type(profile_type=Type.Unconfined)
    if old in _DEFAULTS:
        return Type(profile_type=Type.RuntimeDefault)
    if old.startswith(_LOCAL):
        return Type(profile_type=Type.Localhost, localhost_ref=old)
    raise Invalid(
        CREATE, f"{kind} profile {old!r:.80}", "not known", "runtime/default, unconfined or localhost/..."
    )
