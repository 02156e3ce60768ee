"""The user a container runs as: numbers, or names looked up in the image's passwd(5) and group(5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cri.checks.fields import CREATE
from cri.oci.values import RootImage
from daemonkit.faults import Invalid
from images.bounds.identity import (
    MAX_ID,
    Gid,
    GroupName,
    NoIdentityError,
    Uid,
    UserName,
    group_of,
    is_id,
    user_of,
)
from xenpod_proto.cri.v1 import runtime_pb2 as cri

_MOST_LINES = 100_000
_ROOT = Uid(0)
_ROOT_GROUP = Gid(0)


@dataclass(frozen=True, slots=True)
class User:
    """The numeric ids of a user in the container."""

    uid: Uid = _ROOT
    gid: Gid = _ROOT_GROUP
    groups: tuple[Gid, ...] = ()
    """Supplementary groups."""


@dataclass(frozen=True, slots=True)
class _Account:
    """An account; the name is "" for a user who is not in passwd."""

    name: UserName
    uid: Uid
    gid: Gid


def user(security: cri.LinuxContainerSecurityContext, image: RootImage) -> User:
    """CRI's user, else the image's.  Invalid: the image does not know the name."""
    wanted, group = _wanted(security, image.user)
    account = _named(wanted, image.passwd) if isinstance(wanted, str) else _numbered(wanted, image.passwd)
    gid = account.gid
    if security.HasField("run_as_group"):
        if not (security.HasField("run_as_user") or security.run_as_username):
            raise Invalid(CREATE, "run_as_group", "set without a user", "set run_as_user too")
        gid = Gid(_checked("run_as_group", security.run_as_group.value))
    elif group is not None:
        gid = _named_group(group, image.group) if isinstance(group, str) else group
    return User(account.uid, gid, _supplementary(security, account, gid, image.group))


def in_passwd(uid: Uid, passwd: str) -> bool:
    """Whether an account of passwd(5) has this number."""
    return any(account.uid == uid for account in _accounts(passwd))


def _wanted(
    security: cri.LinuxContainerSecurityContext, image_user: str
) -> tuple[Uid | UserName, Gid | GroupName | None]:
    """The requested user and group; root if neither request nor image names a user.  Invalid: a wrong id."""
    if security.HasField("run_as_user"):
        return Uid(_checked("run_as_user", security.run_as_user.value)), None
    name, group = security.run_as_username, ""
    if not name:
        name, _, group = image_user.partition(":")
    try:
        subject = f"user {name!r:.80}"
        who = user_of(name) if name else _ROOT
        subject = f"group {group!r:.80}"
        return who, group_of(group) if group else None
    except NoIdentityError as error:
        raise Invalid(CREATE, subject, str(error)) from None


def _numbered(uid: Uid, passwd: str) -> _Account:
    """The account of a number.  Without an entry in passwd, the group is 0, as usual."""
    unnamed = _Account(UserName(""), uid, _ROOT_GROUP)
    return next((account for account in _accounts(passwd) if account.uid == uid), unnamed)


def _named(name: UserName, passwd: str) -> _Account:
    for account in _accounts(passwd):
        if account.name == name:
            return account
    raise Invalid(CREATE, f"user {name!r:.80}", "the image's /etc/passwd does not have it", "give a number")


def _named_group(name: GroupName, group: str) -> Gid:
    for fields in _lines(group, 3):
        if fields[0] == name and (gid := _id(fields[2])) is not None:
            return Gid(gid)
    raise Invalid(CREATE, f"group {name!r:.80}", "the image's /etc/group does not have it", "give a number")


def _supplementary(
    security: cri.LinuxContainerSecurityContext, account: _Account, gid: Gid, group: str
) -> tuple[Gid, ...]:
    """CRI's groups, and by the Merge policy the user's groups in the image's files."""
    groups = {Gid(_checked("supplemental_groups", number)) for number in security.supplemental_groups}
    if security.supplemental_groups_policy == cri.Merge and account.name:
        for fields in _lines(group, 4):
            if account.name in fields[3].split(",") and (listed := _id(fields[2])) is not None:
                groups.add(Gid(listed))
    return tuple(sorted({*groups, gid}))


def _accounts(passwd: str) -> Iterator[_Account]:
    for fields in _lines(passwd, 4):
        uid, gid = _id(fields[2]), _id(fields[3])
        if fields[0] and uid is not None and gid is not None:
            yield _Account(UserName(fields[0]), Uid(uid), Gid(gid))


def _lines(untrusted_text: str, least: int) -> Iterator[list[str]]:
    """The lines with at least ``least`` fields; shorter lines are skipped, as in the C library."""
    for line in untrusted_text.split("\n")[:_MOST_LINES]:
        fields = line.strip().split(":")
        if len(fields) >= least and not fields[0].startswith("#"):
            yield fields


def _id(untrusted_text: str) -> int | None:
    """The id in a field of passwd(5) or group(5); None if the field has none."""
    if not (untrusted_text.isascii() and untrusted_text.isdigit() and len(untrusted_text) <= 10):
        return None
    return number if is_id(number := int(untrusted_text)) else None


def _checked(field: str, value: int) -> int:
    if not is_id(value):
        raise Invalid(CREATE, f"{field} {value}", f"not between 0 and {MAX_ID}")
    return value
