"""Parses a seccomp profile, and resolves its conditions for one container.

The file has the format of ``linux.seccomp`` (opencontainers/runtime-spec 1.0.2, config-linux.md), or the
distribution format with conditions: ``archMap``, and in each rule ``includes`` and ``excludes`` with
``caps``, ``arches`` and ``minKernel``.  This module resolves the conditions, because the OCI runtime does not
know them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cri.checks.fields import CREATE
from cri.oci.values import Json
from daemonkit.faults import Invalid, Unsupported

KERNEL = (6, 1)
"""The oldest kernel of zones, compared with ``minKernel``."""

_ACTIONS = frozenset(
    f"SCMP_ACT_{name}"
    for name in ("KILL", "KILL_PROCESS", "KILL_THREAD", "TRAP", "ERRNO", "TRACE", "ALLOW", "LOG")
)
_OPERATORS = frozenset(f"SCMP_CMP_{name}" for name in ("NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"))
_FLAGS = frozenset(f"SECCOMP_FILTER_FLAG_{name}" for name in ("TSYNC", "LOG", "SPEC_ALLOW"))
_ARCHITECTURE = re.compile(r"SCMP_ARCH_[A-Z0-9_]{1,20}")
_SYSCALL = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")
_TOP = frozenset(
    {"defaultAction", "defaultErrnoRet", "architectures", "archMap", "flags", "syscalls", "comment"}
)
_RULE = frozenset(
    {"name", "names", "action", "errnoRet", "args", "includes", "excludes", "comment", "priority"}
)
_CONDITION = frozenset({"caps", "arches", "minKernel"})
_RULES, _NAMES, _ARGUMENTS, _ERRNO_MAX = 2048, 2048, 6, 4095
_EPERM = 1


@dataclass(frozen=True, slots=True)
class Machine:
    """A processor architecture, by its names in seccomp and in conditions."""

    architecture: str
    name: str


MACHINES: Mapping[str, Machine] = {
    "x86_64": Machine("SCMP_ARCH_X86_64", "amd64"),
    "aarch64": Machine("SCMP_ARCH_AARCH64", "arm64"),
}
"""Machines by their name in uname(2)."""


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """The facts about a container that a profile's conditions ask for."""

    capabilities: frozenset[str]
    """``CAP_...``"""
    machine: Machine


class _Wrong(Exception):
    """A profile is invalid; the text says why."""


def resolve_profile(untrusted_text: bytes, subject: str, container: ContainerFacts) -> Json:
    """Resolve to ``linux.seccomp``; Invalid: malformed profile; Unsupported: impossible in every zone."""
    try:
        return _resolve(_object(json.loads(untrusted_text), "profile", None), subject, container)
    except (ValueError, RecursionError):
        raise Invalid(CREATE, subject, "not JSON") from None
    except _Wrong as wrong:
        raise Invalid(CREATE, subject, str(wrong)) from None


def _resolve(profile: Json, subject: str, container: ContainerFacts) -> Json:
    if "listenerPath" in profile or "SCMP_ACT_NOTIFY" in _actions(profile):
        raise Unsupported(
            CREATE, subject, "nobody in a zone would answer its notifications (SCMP_ACT_NOTIFY)"
        )
    _known(profile, _TOP, "profile")
    action = _one_of(profile.get("defaultAction"), _ACTIONS, "defaultAction")
    default: dict[str, object] = {"defaultAction": action}
    if profile.get("defaultErrnoRet") is not None:
        default["defaultErrnoRet"] = _errno(profile["defaultErrnoRet"])
    rules = _list(profile.get("syscalls"), "syscalls", _RULES)
    made = [_rule(_object(rule, "a rule", _RULE)) for rule in rules if _applies(rule, container)]
    return {
        **default,
        "architectures": _architectures(profile, container.machine),
        "flags": [_one_of(flag, _FLAGS, "flags") for flag in _list(profile.get("flags"), "flags", 16)],
        # libseccomp refuses rules with the default action.
        "syscalls": [rule for rule in made if rule["names"] and not _is_default(rule, default)],
    }


def _actions(profile: Json) -> set[object]:
    rules = profile.get("syscalls")
    of_rules = (
        [rule.get("action") for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []
    )
    return {action for action in (profile.get("defaultAction"), *of_rules) if isinstance(action, str)}


def _architectures(profile: Json, machine: Machine) -> list[str]:
    """The named architectures, or this machine's with its older variants."""
    named = [_matching(_ARCHITECTURE, item, "architectures") for item in _of(profile, "architectures", 32)]
    families = [
        _object(item, "archMap", frozenset({"architecture", "subArchitectures"}))
        for item in _of(profile, "archMap", 32)
    ]
    if named and families:
        raise _Wrong("both architectures and archMap")
    for family in families:
        if family.get("architecture") == machine.architecture:
            older = _list(family.get("subArchitectures"), "subArchitectures", 8)
            named = [machine.architecture, *(_matching(_ARCHITECTURE, one, "archMap") for one in older)]
    return named or [machine.architecture]


def _applies(untrusted_rule: object, container: ContainerFacts) -> bool:
    rule = _object(untrusted_rule, "a rule", _RULE)
    wanted = _object(rule.get("includes") or {}, "includes", _CONDITION)
    unwanted = _object(rule.get("excludes") or {}, "excludes", _CONDITION)
    for condition, what in ((wanted, "includes"), (unwanted, "excludes")):
        _list(condition.get("caps"), f"{what}.caps", 64)
        _list(condition.get("arches"), f"{what}.arches", 64)
    arches = _of(wanted, "arches", 64)
    return (
        all(cap in container.capabilities for cap in _of(wanted, "caps", 64))
        and (not arches or container.machine.name in arches)
        and (not wanted.get("minKernel") or _version(wanted["minKernel"]) <= KERNEL)
        and not any(cap in container.capabilities for cap in _of(unwanted, "caps", 64))
        and container.machine.name not in _of(unwanted, "arches", 64)
        and not (unwanted.get("minKernel") and _version(unwanted["minKernel"]) <= KERNEL)
    )


def _rule(rule: Json) -> dict[str, object]:
    names = [*_of(rule, "names", _NAMES), *([rule["name"]] if rule.get("name") else [])]
    made: dict[str, object] = {
        "names": [_matching(_SYSCALL, name, "names") for name in names],
        "action": _one_of(rule.get("action"), _ACTIONS, "action"),
    }
    if rule.get("errnoRet") is not None:
        made["errnoRet"] = _errno(rule["errnoRet"])
    if arguments := _of(rule, "args", _ARGUMENTS):
        made["args"] = [_argument(argument) for argument in arguments]
    return made


def _argument(untrusted: object) -> Json:
    argument = _object(untrusted, "args", frozenset({"index", "value", "valueTwo", "op"}))
    return {
        "index": _number(argument.get("index"), _ARGUMENTS - 1, "index"),
        "value": _number(argument.get("value"), 2**64 - 1, "value"),
        "valueTwo": _number(argument.get("valueTwo", 0), 2**64 - 1, "valueTwo"),
        "op": _one_of(argument.get("op"), _OPERATORS, "op"),
    }


def _is_default(rule: Json, default: Mapping[str, object]) -> bool:
    if rule["action"] != default["defaultAction"]:
        return False
    numbered = rule["action"] in ("SCMP_ACT_ERRNO", "SCMP_ACT_TRACE")
    return not numbered or rule.get("errnoRet", _EPERM) == default.get("defaultErrnoRet", _EPERM)


def _object(value: object, what: str, keys: frozenset[str] | None) -> Json:
    if not isinstance(value, dict):
        raise _Wrong(f"{what}: not an object")
    if keys is not None:
        _known(value, keys, what)
    return value


def _known(value: Json, keys: frozenset[str], what: str) -> None:
    if unknown := sorted(set(value) - keys):
        raise _Wrong(f"{what}: {unknown[0]!r:.80} is not known")


def _of(value: Json, key: str, most: int) -> list[object]:
    return _list(value.get(key), key, most)


def _list(value: object, what: str, most: int) -> list[object]:
    """A list; absent and null are empty, as in Go."""
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > most:
        raise _Wrong(f"{what}: not a list of at most {most}")
    return value


def _one_of(value: object, known: frozenset[str], what: str) -> str:
    if not isinstance(value, str) or value not in known:
        raise _Wrong(f"{what}: {value!r:.80} is not known")
    return value


def _matching(pattern: re.Pattern[str], value: object, what: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _Wrong(f"{what}: {value!r:.80} is not a name")
    return value


def _number(value: object, most: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise _Wrong(f"{what}: {value!r:.80} is not a number from 0 to {most}")
    return value


def _errno(value: object) -> int:
    return _number(value, _ERRNO_MAX, "errnoRet")


def _version(value: object) -> tuple[int, int]:
    if not isinstance(value, str) or not (match := _VERSION.fullmatch(value)):
        raise _Wrong(f"minKernel: {value!r:.80} is not a version")
    return int(match[1]), int(match[2])
