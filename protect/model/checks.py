"""Checks of callers' requests, and of text from zones."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping

from daemonkit.faults import Invalid

NAME_LIMIT = 256
DEVICES_LIMIT = 32
PATH_LIMIT = 4096
SYSCTL_LIMIT = 66
SYSCTL_VALUE_LIMIT = 1024

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_HOSTNAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,62}[A-Za-z0-9])?")
_SECLABEL = re.compile(r"(?=.{1,255}\Z)[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.,-]+){2,4}")
_DEVICE = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
# Namespaced sysctls, sysctl(8).  A pod may set them in every kind of zone.
_SYSCTL = re.compile(
    r"(?:net(?:\.[A-Za-z0-9_-]+)+|kernel\.shm[a-z_]+|kernel\.msg[a-z_]+|kernel\.sem|fs\.mqueue\.[a-z_]+)"
)


def identifier(operation: str, kind: str, value: str) -> str:
    """An id of a zone or workload: 1 to 64 of ``[a-z0-9-]``, beginning with a letter or digit."""
    if not _ID.fullmatch(value):
        cause = f"{printable(value, 80)!r} is not 1 to 64 of [a-z0-9-], or begins with a dash"
        raise Invalid(operation, f"{kind} id", cause)
    return value


def name(operation: str, value: str) -> str:
    """A name for people: at most 256 printable characters."""
    if len(value) > NAME_LIMIT or not value.isprintable():
        raise Invalid(operation, "name", f"want at most {NAME_LIMIT} printable characters")
    return value


def seclabel(operation: str, value: str) -> str:
    """A security context of FLASK, user:role:type and perhaps a range; ``""`` for none."""
    if value and not _SECLABEL.fullmatch(value):
        cause = "want user:role:type, at most 255 of [A-Za-z0-9_.,:-]"
        raise Invalid(operation, f"label {printable(value, 80)!r}", cause)
    return value


def hostname(operation: str, value: str) -> str:
    """A host name of at most 64 bytes, ``""`` for none (sethostname(2), RFC 1123)."""
    if value and not _HOSTNAME.fullmatch(value):
        raise Invalid(operation, f"hostname {printable(value, 80)!r}", "want at most 64 of [A-Za-z0-9.-]")
    return value


def device_name(operation: str, value: str) -> str:
    """A device name in the form of the configuration."""
    if not _DEVICE.fullmatch(value):
        raise Invalid(operation, f"device {printable(value, 80)!r}", "want 1 to 63 of [a-z0-9._-]")
    return value


def device_count(operation: str, subject: str, count: int) -> None:
    """Invalid: a zone or a workload has too many devices."""
    if count > DEVICES_LIMIT:
        raise Invalid(operation, subject, f"{count} devices are more than {DEVICES_LIMIT}")


def interface(operation: str, value: str) -> str:
    """Name of a network interface: at most 15 bytes."""
    if not _INTERFACE.fullmatch(value):
        raise Invalid(operation, f"interface {printable(value, 40)!r}", "want 1 to 15 of [A-Za-z0-9_.-]")
    return value


def path(operation: str, kind: str, value: str) -> str:
    """An absolute path without ``..``."""
    wrong = not value.startswith("/") or len(value) > PATH_LIMIT or "\0" in value or ".." in value.split("/")
    if wrong:
        cause = f"want an absolute path without .. of at most {PATH_LIMIT} bytes"
        raise Invalid(operation, f"{kind} {printable(value, 200)!r}", cause)
    return value


def relative(operation: str, kind: str, value: str) -> str:
    """A relative path without ``..``."""
    wrong = value.startswith("/") or len(value.encode()) >= PATH_LIMIT or "\0" in value
    if wrong or ".." in value.split("/"):
        cause = f"want a relative path without .. of less than {PATH_LIMIT} bytes"
        raise Invalid(operation, f"{kind} {printable(value, 200)!r}", cause)
    return value


def file_name(operation: str, value: str) -> str:
    """A plain file name."""
    if value in ("", ".", "..") or "/" in value or "\0" in value or len(value.encode()) > 255:
        raise Invalid(operation, f"file {printable(value, 80)!r}", "want a plain file name")
    return value


def sysctls(operation: str, values: Mapping[str, str]) -> dict[str, str]:
    """Namespaced sysctls with one-line values."""
    if len(values) > SYSCTL_LIMIT:
        raise Invalid(operation, "sysctls", f"{len(values)} are more than {SYSCTL_LIMIT}")
    for key, value in values.items():
        if not _SYSCTL.fullmatch(key) or len(key) > 200:
            cause = "not one of net.*, kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.*"
            raise Invalid(operation, f"sysctl {printable(key, 80)!r}", cause)
        if len(value) > SYSCTL_VALUE_LIMIT or not value.isprintable():
            raise Invalid(
                operation, f"sysctl {key}", f"its value is not a line of {SYSCTL_VALUE_LIMIT} bytes"
            )
    return dict(values)


def json_object(operation: str, kind: str, value: bytes, limit: int) -> bytes:
    """A JSON object of at most ``limit`` bytes."""
    if len(value) > limit:
        raise Invalid(operation, kind, f"it has {len(value)} bytes, more than {limit}")
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Invalid(operation, kind, f"not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise Invalid(operation, kind, "not a JSON object")
    return value


def port(operation: str, value: int) -> int:
    """A TCP port, 1 to 65535."""
    if not 1 <= value <= 0xFFFF:
        raise Invalid(operation, f"port {value}", "not between 1 and 65535")
    return value


def printable(untrusted: str, limit: int) -> str:
    """The text, cut to ``limit`` characters, without terminal controls and line breaks."""
    kept = "".join(c if c.isprintable() else "�" for c in untrusted[: limit + 1])
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def plain_lines(untrusted: bytes, lines: int) -> list[str]:
    """The last non-empty lines of a console as plain text."""
    text = untrusted.decode("utf-8", "replace")
    kept = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    return [_plain(line) for line in kept[-lines:]]


def _plain(line: str) -> str:
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)
    return "".join(c for c in line if c == " " or unicodedata.category(c)[0] not in "CZ")
