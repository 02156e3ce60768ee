"""What CRI says of a profile (seccomp, AppArmor): in its message, or in the deprecated text."""

from __future__ import annotations

from cri.checks.fields import check_path
from cri.oci.values import CREATE
from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_LOCAL = "localhost/"
_DEFAULTS = ("runtime/default", "docker/default")
Type = cri.SecurityProfile


def chosen(kind: str, profile: cri.SecurityProfile | None, old: str) -> cri.SecurityProfile:
    """``profile`` counts before ``old``; neither is Unconfined.  Invalid for one that is not well-formed."""
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
    """The file of a Localhost profile: absolute and clean."""
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
