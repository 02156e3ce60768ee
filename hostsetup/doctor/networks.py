"""CNI: a readable configuration, and its plugins.

As in libcni, the first file by name of ``*.conf``, ``*.conflist`` and ``*.json`` counts.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hostsetup.doctor.doctor_settings import DoctorSettings
from hostsetup.doctor.machine import Check, CheckedMachine, failed, ok

_SUFFIXES = (".conf", ".conflist", ".json")
_EXAMPLE = {
    "cniVersion": "1.0.0",
    "name": "xenpod",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.0.0/16"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}
"""A configuration for a node without a network of the cluster."""


def networks(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    cni = settings.cri.cni
    folder = machine.path(cni.conf_dir)
    files = sorted(file for file in _entries(folder) if file.suffix in _SUFFIXES)
    if not files and cni.conf_template is not None:
        yield ok("CNI configuration", "it is made from conf_template when the kubelet says the pods' network")
        return
    if not files:
        text = shlex.quote(json.dumps(_EXAMPLE))
        fix = f"mkdir -p {folder} && echo {text} >{folder}/10-xenpod.conflist  # or your cluster's network"
        yield failed("CNI configuration", f"{folder} has none: pods get no network", fix)
        return
    try:
        plugins = list(_plugins(json.loads(machine.text(cni.conf_dir / files[0].name))))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix = f"mv {files[0]} {files[0]}.broken  # the next one counts then"
        yield failed("CNI configuration", f"{files[0]} cannot be read: {error!r}", fix)
        return
    yield ok("CNI configuration", f"{files[0]}")
    folders = [machine.path(place) for place in cni.bin_dirs]
    for plugin in dict.fromkeys(plugins):
        yield from _plugin(plugin, folders)


def _plugin(name: str, folders: list[Path]) -> Check:
    check = f"CNI plugin {name}"
    there = [folder / name for folder in folders if (folder / name).exists()]
    if any(os.access(file, os.X_OK) for file in there):
        yield ok(check, f"{there[0]}")
    elif there:
        yield failed(check, f"{there[0]} cannot be run", f"chmod 755 {shlex.quote(str(there[0]))}")
    else:
        shown = ", ".join(map(str, folders))
        fix = "apt-get install --yes containernetworking-plugins"
        yield failed(check, f"it is in none of {shown}", fix)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _plugins(untrusted: Any) -> Iterator[str]:
    for plugin in untrusted.get("plugins", [untrusted]):
        yield _name(plugin["type"])
        if ipam := plugin.get("ipam"):
            yield _name(ipam["type"])


def _name(untrusted: object) -> str:
    if not isinstance(untrusted, str) or not untrusted or "/" in untrusted or not untrusted.isprintable():
        raise ValueError(f"{untrusted!r:.80} is no plugin's name")
    return untrusted
