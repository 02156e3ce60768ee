"""The file that ``protect doctor --bundle`` writes: for somebody far away, redacted, each part bounded."""

from __future__ import annotations

import io
import os
import re
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from daemonkit.faults import Fault
from protect.cli.doctor.machine import CheckedMachine
from protect.cli.doctor.settings import DoctorSettings

LIMIT = 1 << 20
"""Bytes of one member: of what is longer the end is kept, where the newest is."""
_MEMBERS = 600
_FILES = 64
_WORDS = r"pass(?:word|wd|phrase)?|token|secret|auth|api[_-]?key|private[_-]?key|credentials?|cookie"
_VALUE = r"""(?: "(?:\\.|[^"\\])*" | '[^']*' | \[[^\]]*\] | .+ )"""
_SECRET = re.compile(rf"""(?ix) ( ["']? [\w.-]* (?:{_WORDS}) [\w.-]* ["']? \s* [:=] \s* ) {_VALUE}""")
_HEADERS = re.compile(r"(?m)^(\[[^\n]*header\]\s*$\n)(?:(?!\[).*\n?)*")
"""Tables of hosts.toml: what a registry is sent, whatever its name."""
_URL = re.compile(r"(?i)([a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,}")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_GONE = "[redacted]"

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
    """The text without what opens something: values of keys that sound so, private keys, users in URLs."""
    text = _PEM.sub(_GONE, untrusted)
    text = _URL.sub(rf"\1{_GONE}@", text)
    text = _BEARER.sub(rf"\1 {_GONE}", text)
    text = _HEADERS.sub(rf"\1{_GONE}\n", text)
    return _SECRET.sub(rf"\1{_GONE}", text)


def collect(machine: CheckedMachine, settings: DoctorSettings) -> Iterator[tuple[str, bytes | str]]:
    """Name and content of each part; a text is why there is none."""
    for name, command in COMMANDS.items():
        try:
            yield name, machine.run(command)
        except Fault as fault:
            yield name, str(fault)
    for text in _TEXTS:
        yield f"host{text}", machine.text(text).encode() or f"{text} is empty, or cannot be read"
    places = [settings.protectd_file, settings.cri_file, settings.kubelet_file]
    for folder, pattern in (
        (settings.kubelet_dir, "*.conf"),
        (settings.cri.cni.conf_dir, "*"),
        (Path("/etc/xenpod/certs.d"), "*/hosts.toml"),
        (Path("/var/lib/cni/results"), "*"),
        (Path("/etc/default"), "xen*"),
        (Path("/etc/default/grub.d"), "*"),
    ):
        found = sorted(machine.path(folder).glob(pattern))[:_FILES]
        places += [Path("/") / file.relative_to(machine.root) for file in found if file.is_file()]
    for place in places:
        yield f"files{place}", machine.text(place).encode() or f"{place} is empty, or cannot be read"


def write(path: Path, parts: Iterator[tuple[str, bytes | str]]) -> list[str]:
    """Write the archive, readable by its owner alone; the parts that are missing, with why.  OSError.

    A file that exists is not replaced.
    """
    missing: list[str] = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
        for count, (name, content) in enumerate(parts):
            if count >= _MEMBERS:
                missing.append(f"everything from {name} on: {_MEMBERS} parts are enough")
                break
            if isinstance(content, str):
                missing.append(f"{name}: {content}")
            else:
                _add(tar, name, content)
        _add(tar, "missing", "".join(f"{line}\n" for line in missing).encode())
    return missing


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    kept = content[-LIMIT:]
    text = redact(kept.decode(errors="replace"))
    if len(content) > LIMIT:
        # What is cut may be the middle of a line whose beginning said that it is a secret.
        text = f"[the first {len(content) - LIMIT} bytes are left out]\n" + text.partition("\n")[2]
    data = text.encode()
    member = tarfile.TarInfo(f"xenpod-doctor/{name.lstrip('/')}")
    member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
    tar.addfile(member, io.BytesIO(data))
