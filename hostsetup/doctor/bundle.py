"""The archive that ``protect doctor --bundle`` writes for remote support: redacted, each part bounded.

Configuration files keep the keys that ``keys`` lists.  Logs and output of programs lose all text that looks
like a secret.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from daemonkit.faults import Fault
from hostsetup.doctor import keys
from hostsetup.doctor.doctor_settings import DoctorSettings
from hostsetup.doctor.keep import GONE, Rule, kept
from hostsetup.doctor.machine import CheckedMachine

LIMIT_BYTES = 1 << 20
"""Maximum bytes of a member; a longer text keeps its end, with the newest lines."""
_MOST_MEMBERS = 600
_MOST_FILES = 64
_WORDS = (
    r"pass(?:word|wd|phrase)?|token|secret|auth|api[_-]?key|private[_-]?key|credentials?|cookie|psk|key-data"
)
_VALUE = r"""(?: "(?:\\.|[^"\\])*" | '[^']*' | \[[^\]]*\] | .+ )"""
_SECRET = re.compile(rf"""(?ix) ( ["']? [\w.-]* (?:{_WORDS}) [\w.-]* ["']? \s* [:=] \s* ) {_VALUE}""")
_URL = re.compile(r"(?i)([a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,}")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "versions/uname": ("uname", "-a"),
    "versions/packages": ("dpkg-query", "--show", "xen*", "linux-image*", "crun*", "containernetworking*"),
    "versions/kubelet": ("kubelet", "--version"),
    "versions/crun": ("crun", "--version"),
    "xen/info": ("xl", "info"),
    "xen/domains": ("xl", "list", "--long"),
    "xen/console": ("xl", "dmesg"),
    "logs/protectd": ("journalctl", "--no-pager", "--lines=5000", "--unit=protectd.service"),
    "logs/xenpod-cri": ("journalctl", "--no-pager", "--lines=5000", "--unit=xenpod-cri.service"),
    "logs/kubelet": ("journalctl", "--no-pager", "--lines=2000", "--unit=kubelet.service"),
    "logs/kernel": ("dmesg",),
    "network/links": ("ip", "-details", "link"),
    "network/addresses": ("ip", "address"),
    "network/routes": ("ip", "route"),
    "units/status": ("systemctl", "--no-pager", "status", "protectd.service", "xenpod-cri.service"),
}
_TEXTS = (
    "/etc/os-release",
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/mounts",
    "/proc/modules",
    "/proc/cmdline",
)


def redact(untrusted: str) -> str:
    """The text without secrets: values of keys that sound secret, private keys, users in URLs."""
    text = _PEM.sub(GONE, untrusted)
    text = _URL.sub(rf"\1{GONE}@", text)
    text = _BEARER.sub(rf"\1 {GONE}", text)
    return _SECRET.sub(rf"\1{GONE}", text)


_OWN_DETAILS = ("versions", "handlers", "delegate", "toolstack", "notices")
_TOML, _YAML, _JSON = "TOML", "YAML", "JSON"
_CNI_FILES = (".conf", ".conflist", ".json")


def shown(untrusted: str, language: str, rule: Rule) -> bytes | str:
    """A configuration file as JSON, with the keys and values that ``rule`` allows; a text says why not.

    A file with a syntax error is left out: its keys cannot be told from its values.
    """
    try:
        found = _READERS[language](untrusted)
        return json.dumps(kept(found, rule), indent=1).encode()
    except (ValueError, YAMLError, RecursionError):
        return f"it cannot be read as {language}, and is left out"


def of_status(status: Mapping[str, Any]) -> dict[str, Any]:
    """xenpod-cri's verbose Status: the configuration redacted by ``shown``, and xenpod-cri's own details.

    Details of another runtime are left out: they contain its configuration with passwords of registries.
    """
    info: Mapping[str, str] = status.get("info", {})
    own: dict[str, object] = {name: info[name] for name in _OWN_DETAILS if name in info}
    if "config" in info:
        config = shown(info["config"], _JSON, keys.CRI)
        own["config"] = config if isinstance(config, str) else json.loads(config)
    return {**status, "info": own}


def _yaml(untrusted: str) -> object:
    return YAML(typ="safe", pure=True).load(untrusted)


_READERS: Mapping[str, Callable[[str], object]] = {_TOML: tomllib.loads, _YAML: _yaml, _JSON: json.loads}


def _files(machine: CheckedMachine, settings: DoctorSettings) -> Iterator[tuple[Path, str, Rule]]:
    """Configuration files with their languages and rules; "" is an unknown language."""
    yield settings.protectd_file, _TOML, keys.PROTECTD
    yield settings.cri_file, _TOML, keys.CRI
    yield settings.kubelet_file, _YAML, keys.KUBELET
    for folder, pattern, language, rule in (
        (settings.kubelet_dir, "*.conf", _YAML, keys.KUBELET),
        (settings.cri.cni.conf_dir, "*", _JSON, keys.CNI),
        (Path("/etc/xenpod/certs.d"), "*/hosts.toml", _TOML, keys.REGISTRY),
        (Path("/var/lib/cni/results"), "*", _JSON, keys.RESULT),
    ):
        for file in sorted(machine.path(folder).glob(pattern))[:_MOST_FILES]:
            if file.is_file():
                # A network add-on keeps its kubeconfig beside its configuration.
                known = rule is not keys.CNI or file.suffix in _CNI_FILES
                yield Path("/") / file.relative_to(machine.root), language if known else "", rule


def collect(machine: CheckedMachine, settings: DoctorSettings) -> Iterator[tuple[str, bytes | str]]:
    """Name and content of each part; a text says why the content is missing."""
    for name, command in COMMANDS.items():
        try:
            yield name, machine.run(command)
        except Fault as fault:
            yield name, str(fault)
    for text in _TEXTS:
        yield f"host{text}", machine.text(text).encode() or f"{text} is empty, or cannot be read"
    for place, language, rule in _files(machine, settings):
        name, text = f"files{place}", machine.text(place)
        if not text:
            yield name, f"{place} is empty, or cannot be read"
        elif not language:
            yield name, "it is no configuration that is known here, and is left out"
        else:
            yield name, shown(text, language, rule)


def write_bundle(path: Path, parts: Iterator[tuple[str, bytes | str]]) -> list[str]:
    """Write the archive, readable by its owner alone; returns the missing parts with reasons.

    OSError, also if the file exists.
    """
    missing: list[str] = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
        for count, (name, content) in enumerate(parts):
            if count >= _MOST_MEMBERS:
                missing.append(f"everything from {name} on: {_MOST_MEMBERS} parts are enough")
                break
            if isinstance(content, str):
                missing.append(f"{name}: {content}")
            else:
                _add(tar, name, content)
        _add(tar, "missing", "".join(f"{line}\n" for line in missing).encode())
    return missing


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    kept = content[-LIMIT_BYTES:]
    text = redact(kept.decode(errors="replace"))
    if len(content) > LIMIT_BYTES:
        # The cut may split a line whose beginning marks the rest as a secret.
        text = f"[the first {len(content) - LIMIT_BYTES} bytes are left out]\n" + text.partition("\n")[2]
    data = text.encode()
    member = tarfile.TarInfo(f"xenpod-doctor/{name.lstrip('/')}")
    member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
    tar.addfile(member, io.BytesIO(data))
