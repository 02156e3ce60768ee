"""Users and groups, by number or by name: two types, distinguished when text is parsed.

A number is never looked up as a name.  Otherwise an image could give an account the name ``1000`` and the uid
0, and thereby choose the uid of a pod that asks for uid 1000.
"""

from __future__ import annotations

import re
from typing import NewType

Uid = NewType("Uid", int)
Gid = NewType("Gid", int)
UserName = NewType("UserName", str)
GroupName = NewType("GroupName", str)

MAX_ID = 2**32 - 2
"""The last id: the next number stands for none (setresuid(2))."""
LONGEST_NAME_BYTES = 256
"""Characters of a name (LOGIN_NAME_MAX of Linux)."""

# Other runtimes accept a sign as part of a number (Go's strconv.Atoi).
_NUMBER = re.compile(r"[+-]?[0-9]+")


class NoIdentityError(ValueError):
    """A text that is neither an id nor a name; the message gives the reason."""


def is_id(number: int) -> bool:
    """Whether a number is a uid or gid."""
    return 0 <= number <= MAX_ID


def user_of(untrusted_text: str) -> Uid | UserName:
    """The user in a text; NoIdentityError."""
    number = _number(untrusted_text)
    return UserName(untrusted_text) if number is None else Uid(number)


def group_of(untrusted_text: str) -> Gid | GroupName:
    """The group in a text; NoIdentityError."""
    number = _number(untrusted_text)
    return GroupName(untrusted_text) if number is None else Gid(number)


def _number(untrusted_text: str) -> int | None:
    """The id in a text; None for a name.  NoIdentityError: an invalid id, or too long a name."""
    if not _NUMBER.fullmatch(untrusted_text):
        if len(untrusted_text) > LONGEST_NAME_BYTES:
            raise NoIdentityError(f"a name of more than {LONGEST_NAME_BYTES} characters")
        return None
    digits = untrusted_text.lstrip("+").lstrip("0") or "0"
    if len(digits) > len(str(MAX_ID)) or not is_id(int(digits)):
        raise NoIdentityError(f"a number that is not between 0 and {MAX_ID}")
    return int(digits)
