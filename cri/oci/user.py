"""The user a container runs as: numbers, or names looked up in the image's passwd(5) and group(5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cri.checks.fields import CREATE
from cri.oci.values import RootImage
from daemonkit.faults import Invalid
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_MAX_ID = 2**32 - 2
_LINES = 100_000


@dataclass(frozen=True, slots=True)
class User:
    """The numeric ids of a user in the container."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    """Supplementary groups."""


@dataclass(frozen=True, slots=True)
class _Account:
    name: str
    uid: int
    gid: int


def user(security: cri.LinuxContainerSecurityContext, image: RootImage) -> User:
    """The user that CRI chooses, else the image's.  Invalid: the image does not know the name."""
    wanted, group = _wanted(security, image.user)
    account = _account(wanted, image.passwd)
    gid = account.gid
    if security.HasField("run_as_group"):
        if not (security.HasField("run_as_user") or security.run_as_username):
            raise Invalid(CREATE, "run_as_group", "set without a user", "set run_as_user too")
        gid = _number("run_as_group", security.run_as_group.value)
    elif group:
        gid = _group(group, image.group)
    return User(account.uid, gid, _supplementary(security, account, gid, image.group))


def in_passwd(uid: int, passwd: str) -> bool:
    """Whether an account of passwd(5) has this number."""
    return any(account.uid == uid for account in _accounts(passwd))


def _wanted(security: cri.LinuxContainerSecurityContext, image_user: str) -> tuple[str, str]:
    """User and group as text, each a number or a name, "" if not given."""
    if security.HasField("run_as_user"):
        return str(_number("run_as_user", security.run_as_user.value)), ""
    if security.run_as_username:
        return security.run_as_username, ""
    name, _, group = image_user.partition(":")
    return name, group


def _account(wanted: str, passwd: str) -> _Account:
    """Look up a user.  A number need not be in passwd (its group is then 0, as usual); a name must be."""
    for account in _accounts(passwd):
        if account.name == wanted or str(account.uid) == wanted:
            return account
    if not wanted:
        return _Account("", 0, 0)
    if wanted.isascii() and wanted.isdigit():
        return _Account("", _number("user", int(wanted[:20])), 0)
    raise Invalid(CREATE, f"user {wanted!r:.80}", "the image's /etc/passwd does not have it", "give a number")


def _group(wanted: str, group: str) -> int:
    if wanted.isascii() and wanted.isdigit():
        return _number("group", int(wanted[:20]))
    for fields in _lines(group, 3):
        if fields[0] == wanted and _is_id(fields[2]):
            return int(fields[2])
    raise Invalid(CREATE, f"group {wanted!r:.80}", "the image's /etc/group does not have it", "give a number")


def _supplementary(
    security: cri.LinuxContainerSecurityContext, account: _Account, gid: int, group: str
) -> tuple[int, ...]:
    """CRI's groups, and by the Merge policy those in which the image's files have the user."""
    groups = {_number("supplemental_groups", number) for number in security.supplemental_groups}
    if security.supplemental_groups_policy == cri.Merge and account.name:
        for fields in _lines(group, 4):
            if account.name in fields[3].split(",") and _is_id(fields[2]):
                groups.add(int(fields[2]))
    return tuple(sorted({*groups, gid}))


def _accounts(passwd: str) -> Iterator[_Account]:
    for fields in _lines(passwd, 4):
        if fields[0] and _is_id(fields[2]) and _is_id(fields[3]):
            yield _Account(fields[0], int(fields[2]), int(fields[3]))


def _lines(untrusted_text: str, least: int) -> Iterator[list[str]]:
    """The lines with at least ``least`` fields; others are skipped, as the C library does."""
    for line in untrusted_text.split("\n")[:_LINES]:
        fields = line.strip().split(":")
        if len(fields) >= least and not fields[0].startswith("#"):
            yield fields


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _MAX_ID


def _number(field: str, value: int) -> int:
    if not 0 <= value <= _MAX_ID:
        raise Invalid(CREATE, f"{field} {value}", f"not between 0 and {_MAX_ID}")
    return value
