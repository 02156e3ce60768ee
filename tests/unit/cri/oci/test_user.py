"""The user of a container: ids and names, and the part of an image's files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cri.oci.user import User, user
from daemonkit.faults import Invalid
from images.bounds.identity import Gid, Uid
from images.rpc.cri_messages import image_message
from images.store.catalogue import StoredImage
from tests.support.cri.cri_node import IMAGE
from xenpod_proto.cri.v1 import runtime_pb2 as cri

Security = cri.LinuxContainerSecurityContext

# Accounts and groups with numbers as names; the numbers mean root.
PASSWD = """\
99999:x:0:0::/root:/bin/sh
4294967296:x:0:0::/root:/bin/sh
01000:x:0:0::/root:/bin/sh
+7:x:0:0::/root:/bin/sh
app:x:1000:1::/:/bin/sh
"""
GROUP = "root:x:0:\n77777:x:0:\nwheel:x:10:99999,01000\nadm:x:4:app\n"


def _number(value: int) -> cri.Int64Value:
    return cri.Int64Value(value=value)


def _who(uid: int, gid: int, groups: tuple[int, ...]) -> User:
    return User(Uid(uid), Gid(gid), tuple(map(Gid, groups)))


USERS: list[tuple[Security, str, User]] = [
    (Security(), "", _who(0, 0, (0,))),
    (Security(), "web", _who(101, 102, (102, 103))),
    (Security(), "web:www", _who(101, 103, (103,))),
    (Security(), "web:7", _who(101, 7, (7, 103))),
    (Security(), "101", _who(101, 102, (102, 103))),
    (Security(), "4000", _who(4000, 0, (0,))),
    (Security(), "4000:5000", _who(4000, 5000, (5000,))),
    (Security(run_as_username="web"), "", _who(101, 102, (102, 103))),
    (Security(run_as_user=_number(101)), "root", _who(101, 102, (102, 103))),
    (Security(run_as_user=_number(9)), "web", _who(9, 0, (0,))),
    (Security(run_as_user=_number(9), run_as_group=_number(8)), "web:www", _who(9, 8, (8,))),
    (Security(run_as_user=_number(0)), "web", _who(0, 0, (0,))),
    (Security(run_as_user=_number(7), run_as_group=_number(0)), "", _who(7, 0, (0,))),
    (Security(run_as_username="web", supplemental_groups=[0]), "", _who(101, 102, (0, 102, 103))),
    (Security(supplemental_groups=[2**32 - 2]), "0:0", _who(0, 0, (0, 2**32 - 2))),
    (Security(), "4294967294:4294967294", _who(2**32 - 2, 2**32 - 2, (2**32 - 2,))),
    (
        Security(run_as_username="web", supplemental_groups=[5, 4], supplemental_groups_policy=cri.Strict),
        "",
        _who(101, 102, (4, 5, 102)),
    ),
    (Security(run_as_username="web", supplemental_groups=[5]), "", _who(101, 102, (5, 102, 103))),
]


@pytest.mark.parametrize(("security", "image_user", "expected"), USERS)
def test_user_comes_from_security_context_or_image(
    security: Security, image_user: str, expected: User
) -> None:
    assert user(security, replace(IMAGE, user=image_user)) == expected


@pytest.mark.parametrize("name", ["nobody-knows", "web:nobody-knows", "-1", "4294967295", "9" * 400, "²"])
def test_malformed_users_are_refused(name: str) -> None:
    with pytest.raises(Invalid):
        user(Security(), replace(IMAGE, user=name))


NAMED_LIKE_NUMBERS: list[tuple[Security, str, User]] = [
    (Security(run_as_user=_number(99999)), "", _who(99999, 0, (0,))),
    (Security(run_as_username="99999"), "", _who(99999, 0, (0,))),
    (Security(), "99999", _who(99999, 0, (0,))),
    (Security(), "01000", _who(1000, 1, (1, 4))),
    (Security(run_as_username="01000"), "", _who(1000, 1, (1, 4))),
    (Security(), "+7", _who(7, 0, (0,))),
    (Security(), "app:77777", _who(1000, 77777, (4, 77777))),
    (Security(), "99999:077777", _who(99999, 77777, (77777,))),
    (Security(run_as_user=_number(5), run_as_group=_number(77777)), "", _who(5, 77777, (77777,))),
    (Security(run_as_user=_number(5), supplemental_groups=[77777]), "", _who(5, 0, (0, 77777))),
]


@pytest.mark.parametrize(("security", "image_user", "expected"), NAMED_LIKE_NUMBERS)
def test_a_number_is_an_id_even_if_an_account_has_the_name(
    security: Security, image_user: str, expected: User
) -> None:
    image = replace(IMAGE, passwd=PASSWD, group=GROUP, user=image_user)
    assert user(security, image) == expected


@pytest.mark.parametrize("text", ["4294967296", "4294967295", "-1", "99999999999999999999", "app:4294967296"])
def test_a_number_beyond_ids_is_refused_even_if_an_account_has_the_name(text: str) -> None:
    names = "".join(f"{name}:x:0:0::/:\n" for name in text.split(":"))
    with pytest.raises(Invalid, match="not between 0 and 4294967294"):
        user(Security(), replace(IMAGE, passwd=PASSWD + names, group=names, user=text))
    with pytest.raises(Invalid):
        user(Security(run_as_username=text), replace(IMAGE, passwd=PASSWD + names))


def _shown(image_user: str) -> cri.Image:
    config = {"config": {"User": image_user}, "rootfs": {"diff_ids": []}}
    return image_message(StoredImage(IMAGE.id, (), (), 1, config, (), "squashfs", "", "", 0))


@pytest.mark.parametrize(
    ("image_user", "uid"),
    [("99999", 99999), ("99999:app", 99999), ("01000", 1000), ("4294967294", 2**32 - 2), ("0", 0), ("+7", 7)],
)
def test_an_image_shows_the_uid_of_a_number(image_user: str, uid: int) -> None:
    """The kubelet's runAsNonRoot compares the uid with 0."""
    shown = _shown(image_user)
    assert (shown.uid.value, shown.username) == (uid, "")


@pytest.mark.parametrize("image_user", ["app", "4294967296", "-1", "9" * 300, "0" * 256 + "x", "a" * 300])
def test_an_image_shows_a_username_for_all_else(image_user: str) -> None:
    """The kubelet's runAsNonRoot refuses user names, because a name may mean root."""
    shown = _shown(image_user)
    assert not shown.HasField("uid") and 0 < len(shown.username) <= 256


_TEXT = st.text(max_size=300)
_LIKE_NUMBERS = st.from_regex(r"[+-]?0{0,3}[0-9]{1,11}", fullmatch=True)
_IDS = st.integers(0, 2**32 - 2)
_ACCOUNTS = st.lists(
    st.tuples(st.one_of(_LIKE_NUMBERS, st.text(max_size=8)), st.one_of(_LIKE_NUMBERS, _TEXT)), max_size=8
)


@st.composite
def _hostile_files(draw: st.DrawFn) -> tuple[str, str]:
    """A passwd and a group file: lines with numbers in all places, or any bytes."""
    if draw(st.booleans()):
        return tuple(draw(st.binary(max_size=300)).decode(errors="replace") for _ in "12")  # type: ignore[return-value]
    accounts = draw(_ACCOUNTS)
    passwd = "\n".join(f"{name}:x:{number}:{number}::/:" for name, number in accounts)
    group = "\n".join(f"{name}:x:{number}:{name},{number}" for name, number in accounts)
    return passwd, group


@given(files=_hostile_files(), uid=_IDS, image_user=st.one_of(_LIKE_NUMBERS, _TEXT), data=st.data())
def test_no_image_changes_the_uid_of_a_number(
    files: tuple[str, str], uid: int, image_user: str, data: st.DataObject
) -> None:
    passwd, group = files
    # Also the very number as an account's name.
    passwd = data.draw(st.sampled_from([passwd, f"{uid}:x:0:0::/:\n{passwd}", f"a:x:{uid}:0::/:\n{passwd}"]))
    image = replace(IMAGE, passwd=passwd, group=group, user=image_user)
    assert user(Security(run_as_user=_number(uid)), image).uid == uid
    assert user(Security(run_as_username=str(uid)), image).uid == uid
    spelled = data.draw(st.sampled_from([f"{uid}", f"0{uid}", f"+{uid}", f"{uid}:{uid}"]))
    found = user(Security(), replace(image, user=spelled))
    assert found.uid == uid and (":" not in spelled or found.gid == uid)


@given(files=_hostile_files(), image_user=st.one_of(_LIKE_NUMBERS, _TEXT), gid=_IDS)
def test_a_numeric_group_is_its_number(files: tuple[str, str], image_user: str, gid: int) -> None:
    image = replace(IMAGE, passwd=files[0], group=files[1], user=image_user)
    by_number = Security(run_as_user=_number(1), run_as_group=_number(gid), supplemental_groups=[gid])
    found = user(by_number, image)
    assert found.gid == gid and gid in found.groups


@given(files=_hostile_files(), image_user=st.one_of(_LIKE_NUMBERS, _TEXT))
def test_an_image_and_its_process_show_the_same_uid(files: tuple[str, str], image_user: str) -> None:
    shown = _shown(image_user)
    image = replace(IMAGE, passwd=files[0], group=files[1], user=image_user)
    asked = [Security()]  # and as the kubelet asks, with the image's user
    if shown.HasField("uid"):
        asked.append(Security(run_as_user=_number(shown.uid.value)))
    elif shown.username:
        asked.append(Security(run_as_username=shown.username))
    uids = set()
    for security in asked:
        try:
            uids.add(user(security, image).uid)
        except Invalid:
            continue
    assert len(uids) <= 1
    if shown.HasField("uid"):
        assert uids == {shown.uid.value} or ":" in image_user


@given(passwd=st.text(max_size=300), group=st.text(max_size=300), name=st.text(max_size=20))
def test_hostile_account_files_give_valid_ids_or_refusal(passwd: str, group: str, name: str) -> None:
    try:
        found = user(Security(), replace(IMAGE, passwd=passwd, group=group, user=name))
    except Invalid:
        return
    assert all(0 <= value < 2**32 - 1 for value in (found.uid, found.gid, *found.groups))


@pytest.mark.parametrize("number", [-1, 2**32 - 1])
@pytest.mark.parametrize("field", ["run_as_user", "run_as_group", "supplemental_groups"])
def test_invalid_ids_are_refused(field: str, number: int) -> None:
    values: dict[str, Any] = {"run_as_user": cri.Int64Value(value=1)}
    values[field] = [number] if field == "supplemental_groups" else cri.Int64Value(value=number)
    with pytest.raises(Invalid, match=f"create container {field} {number}: not between 0 and 4294967294"):
        user(Security(**values), IMAGE)
