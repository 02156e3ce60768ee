"""Checks of a container's security context: every value that cannot be honoured is refused by name.

Profiles (seccomp, AppArmor) come in a message of CRI, or in its deprecated text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from cri.checks.fields import CREATE, ELSEWHERE, RUN, check_path
from cri.checks.userns import container_userns, pod_userns
from daemonkit.faults import Invalid, Refused
from images.bounds.identity import MAX_ID, is_id
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_OWN_KERNEL = "this node runs a pod in a virtual machine with a kernel of its own"
_LOCAL = "localhost/"
_DEFAULTS = ("runtime/default", "docker/default")
# SELinux level of a multi-category policy: a sensitivity or a range, and categories.
_SELINUX_LEVEL = re.compile(r"s[0-9](-s[0-9])?(:c[0-9]{1,4}([.,]c[0-9]{1,4})*)?")
Type = cri.SecurityProfile


def check_pod_security(
    name: str, security: cri.LinuxSandboxSecurityContext, handler: str, host_is_zone: Iterable[str]
) -> None:
    """Invalid or Refused for values that cannot be honoured.

    Most values are about a pause container, which a zone does not have.  Well-formed values are accepted,
    because the kubelet copies them from ordinary pods.  ``host_is_zone``: the handlers that give the zone's
    namespaces to pods that ask for the host's.
    """
    _check_pod_namespaces(name, security.namespace_options, handler, frozenset(host_is_zone))
    pod_userns(RUN, name, security.namespace_options)
    if security.HasField("run_as_group") and not security.HasField("run_as_user"):
        raise Invalid(RUN, "run_as_group", "set without a user", "set run_as_user too")
    numbers = [("run_as_user", security.run_as_user.value), ("run_as_group", security.run_as_group.value)]
    for field, number in (*numbers, *(("supplemental_groups", one) for one in security.supplemental_groups)):
        if not is_id(number):
            raise Invalid(RUN, f"{field} {number}", f"not between 0 and {MAX_ID}")
    _check_groups_policy(RUN, name, security.supplemental_groups_policy)
    check_selinux(RUN, name, security.selinux_options)
    _check_apparmor(RUN, security.apparmor if security.HasField("apparmor") else None, "")


def _check_pod_namespaces(
    name: str, options: cri.NamespaceOption, handler: str, host_is_zone: frozenset[str]
) -> None:
    known = cri.NamespaceMode.values()
    if any(mode not in known for mode in (options.network, options.pid, options.ipc)):
        raise Invalid(RUN, name, "an unknown namespace mode")
    if options.network == cri.NODE:
        raise Refused(RUN, name, f"it wants the host's network (hostNetwork), and {_OWN_KERNEL}", ELSEWHERE)
    if options.network != cri.POD:
        raise Invalid(RUN, name, "network namespace mode: neither POD nor NODE")
    if options.ipc == cri.TARGET or options.pid == cri.TARGET:
        raise Invalid(RUN, name, "namespace mode TARGET is for containers")
    wants = _host_namespaces(options)
    if wants and handler not in host_is_zone:
        other = (
            f", or with the runtime handler {min(host_is_zone)}: there it is the zone's"
            if host_is_zone
            else ""
        )
        raise Refused(RUN, name, f"it wants {wants}, and {_OWN_KERNEL}", ELSEWHERE + other)


def _host_namespaces(options: cri.NamespaceOption) -> str:
    """The requested namespaces of the host, by the names of the pod's fields; "": none."""
    wants = []
    if options.pid == cri.NODE:
        wants.append("the host's processes (hostPID)")
    if options.ipc == cri.NODE:
        wants.append("the host's IPC (hostIPC)")
    return " and ".join(wants)


def check_security(
    name: str,
    security: cri.LinuxContainerSecurityContext,
    pod: cri.LinuxSandboxSecurityContext,
    *,
    host_is_zone: bool = False,
) -> None:
    """Invalid or Refused for impossible values; ``pod``: the sandbox's; ``host_is_zone``: see above."""
    if security.privileged and not pod.privileged:
        raise Refused(
            CREATE, name, "privileged, and its pod sandbox is not", "run the sandbox with privileged set"
        )
    _check_namespaces(name, security.namespace_options)
    _check_host_namespaces(name, security.namespace_options, pod.namespace_options, host_is_zone)
    container_userns(CREATE, name, security.namespace_options, pod.namespace_options)
    apparmor = security.apparmor if security.HasField("apparmor") else None
    _check_apparmor(CREATE, apparmor, security.apparmor_profile)
    check_selinux(CREATE, name, security.selinux_options)
    _check_groups_policy(CREATE, name, security.supplemental_groups_policy)
    for field in ("masked_paths", "readonly_paths"):
        for path in getattr(security, field):
            check_path(CREATE, field, path, absolute=True)


def _check_namespaces(name: str, options: cri.NamespaceOption) -> None:
    """Invalid for modes unknown to CRI; Refused for the host's network."""
    known = cri.NamespaceMode.values()
    if any(mode not in known for mode in (options.network, options.pid, options.ipc)):
        raise Invalid(CREATE, name, "an unknown namespace mode")
    if options.network == cri.NODE:
        cause = f"it wants the host's network (hostNetwork), and {_OWN_KERNEL}"
        raise Refused(CREATE, name, cause, ELSEWHERE)
    if options.network != cri.POD:
        raise Invalid(CREATE, name, "network namespace mode: neither POD nor NODE")
    if options.ipc == cri.TARGET:
        raise Invalid(CREATE, name, "IPC namespace mode: TARGET is for processes alone")
    if (options.pid == cri.TARGET) != bool(options.target_id):
        raise Invalid(CREATE, name, "target_id and the process namespace mode TARGET go together")


def _check_host_namespaces(
    name: str, options: cri.NamespaceOption, pod: cri.NamespaceOption, host_is_zone: bool
) -> None:
    """NODE means the zone's namespace if the handler says so now, or said so when the pod was made."""
    pid = cri.POD if pod.pid == cri.NODE else options.pid
    ipc = cri.POD if pod.ipc == cri.NODE else options.ipc
    if not host_is_zone and (wants := _host_namespaces(cri.NamespaceOption(pid=pid, ipc=ipc))):
        raise Refused(CREATE, name, f"it wants {wants}, and {_OWN_KERNEL}", ELSEWHERE)


def check_selinux(operation: str, name: str, options: cri.SELinuxOption) -> None:
    """Invalid for malformed labels.  Without SELinux in the zone a label has no effect."""
    if options.level and not _SELINUX_LEVEL.fullmatch(options.level):
        raise Invalid(operation, name, f"SELinux level {options.level!r:.80}: not of the form s0:c1,c2")


def labelled(options: cri.SELinuxOption) -> bool:
    """Whether the request has any part of an SELinux label."""
    return any((options.user, options.role, options.type, options.level))


def _check_groups_policy(operation: str, name: str, policy: int) -> None:
    if policy not in cri.SupplementalGroupsPolicy.values():
        raise Invalid(operation, name, f"supplemental groups policy {policy}: unknown")


def _check_apparmor(operation: str, message: cri.SecurityProfile | None, old: str) -> None:
    """RuntimeDefault means no profile: the zone confines a container."""
    asked = chosen("AppArmor", message, old, operation)
    if asked.profile_type == cri.SecurityProfile.Localhost:
        raise Refused(
            operation,
            f"AppArmor profile {asked.localhost_ref!r:.80}",
            "not loaded: zones have no profiles loaded",
        )


def chosen(
    kind: str, profile: cri.SecurityProfile | None, old: str, operation: str = CREATE
) -> cri.SecurityProfile:
    """The requested profile: ``profile``, else the text ``old``, else Unconfined.  Invalid: malformed."""
    asked = profile if profile is not None else _of_text(kind, old, operation)
    if asked.profile_type not in Type.ProfileType.values():
        raise Invalid(operation, f"{kind} profile type {asked.profile_type}", "unknown")
    if asked.profile_type != Type.Localhost:
        if asked.localhost_ref:
            raise Invalid(operation, f"{kind} profile", "localhost_ref is set, and its type is not Localhost")
        return asked
    reference = asked.localhost_ref.removeprefix(_LOCAL)
    if not reference:
        raise Invalid(operation, f"{kind} profile", "its type is Localhost, and localhost_ref is empty")
    return Type(profile_type=Type.Localhost, localhost_ref=reference)


def local_path(kind: str, asked: cri.SecurityProfile, operation: str = CREATE) -> str:
    """The file of a Localhost profile; Invalid unless its path is absolute and clean."""
    check_path(operation, f"{kind} profile", asked.localhost_ref, absolute=True)
    return asked.localhost_ref


def _of_text(kind: str, old: str, operation: str) -> cri.SecurityProfile:
    if old in ("", "unconfined"):
        return Type(profile_type=Type.Unconfined)
    if old in _DEFAULTS:
        return Type(profile_type=Type.RuntimeDefault)
    if old.startswith(_LOCAL):
        return Type(profile_type=Type.Localhost, localhost_ref=old)
    raise Invalid(
        operation, f"{kind} profile {old!r:.80}", "not known", "runtime/default, unconfined or localhost/..."
    )
