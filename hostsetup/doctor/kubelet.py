"""Checks the kubelet's configuration: a node needs some settings to work, and others to show statistics.

The kubelet reads its file, then the drop-ins (``*.conf``) of its ``--config-dir`` by name; the last file with
a key counts.  Source: kubernetes.io, "Set Kubelet Parameters Via A Configuration File".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from hostsetup.doctor.doctor_settings import DoctorSettings
from hostsetup.doctor.machine import Check, CheckedMachine, CheckResult, failed, ok, warning

_GATE = "PodAndContainerStatsFromCRI"
_DROP_IN = "99-xenpod-doctor.conf"
_HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\\nkind: KubeletConfiguration\\n"
_RESTART = "systemctl restart kubelet.service"


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """The keys of all files, and whether the kubelet reads a folder of drop-ins."""

    keys: Mapping[str, Any]
    file: Path
    drop_ins: Path

    def fix(self, yaml: str) -> str:
        """Commands that set a key for good, in a file that overrides the others."""
        place = self.drop_ins / _DROP_IN
        head = f"mkdir -p {self.drop_ins} && {{ test -e {place} || printf '{_HEAD}' >{place}; }}"
        return f"{head} && printf '{yaml}\\n' >>{place} && {_RESTART}  # with --config-dir {self.drop_ins}"


def kubelet(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    file, folder = machine.path(settings.kubelet_file), machine.path(settings.kubelet_dir)
    if not file.exists() and not folder.is_dir():
        yield ok("kubelet", "none is set up here")
        return
    if (flags := _flags(machine)) and not any(flag.startswith("--config-dir") for flag in flags):
        extra, place = f'KUBELET_EXTRA_ARGS="--config-dir={folder}"', machine.path("/etc/default/kubelet")
        says = f"it runs without this flag, and reads nothing in {folder}"
        fix = f"mkdir -p {folder} && echo '{extra}' >>{place} && {_RESTART}"
        yield failed("kubelet --config-dir", says, fix)
        return
    keys: dict[str, Any] = {}
    for each in [file, *sorted(folder.glob("*.conf"))]:
        try:
            _merge(keys, YAML(typ="safe").load(each) if each.exists() else {})
        except (YAMLError, OSError, TypeError, AttributeError) as error:
            says = f"{each} cannot be read: {str(error).splitlines()[0]}"
            yield failed("kubelet", says, f"mv {each} {each}.broken && {_RESTART}")
            return
    found = KubeletSettings(keys, file, folder)
    yield _endpoint(found, settings.cri_socket)
    yield _driver(found, machine)
    gates = keys.get("featureGates") or {}
    if gates.get(_GATE) is True:
        yield ok(f"kubelet {_GATE}", "figures of pods come from xenpod-cri")
    else:
        says = "the kubelet looks for pods in control groups of the host, where zones are not"
        yield warning(f"kubelet {_GATE}", says, found.fix(f"featureGates:\\n  {_GATE}: true"))
    if keys.get("serializeImagePulls") is False:
        yield ok("kubelet serializeImagePulls", "images are pulled at once")
    else:
        says = "images are pulled one after the other, so a large one holds up all pods"
        yield warning("kubelet serializeImagePulls", says, found.fix("serializeImagePulls: false"))


def _endpoint(found: KubeletSettings, wanted: Path) -> CheckResult:
    endpoint = str(found.keys.get("containerRuntimeEndpoint", ""))
    if endpoint.removeprefix("unix://") == str(wanted):
        return ok("kubelet containerRuntimeEndpoint", endpoint)
    says = f"it is {endpoint or 'not set'}: the kubelet asks another runtime, unless a flag says otherwise"
    fix = found.fix(f"containerRuntimeEndpoint: unix://{wanted}")
    return warning("kubelet containerRuntimeEndpoint", says, fix)


def _driver(found: KubeletSettings, machine: CheckedMachine) -> CheckResult:
    """xenpod-cri answers "systemd" if systemd runs; a kubelet that asks the runtime needs no key."""
    wanted = "systemd" if machine.path("/run/systemd/system").is_dir() else "cgroupfs"
    driver = found.keys.get("cgroupDriver", wanted)
    if driver == wanted:
        return ok("kubelet cgroupDriver", wanted)
    says = f"it is {driver}, this host's is {wanted}: both would manage the same groups"
    return failed("kubelet cgroupDriver", says, found.fix(f"cgroupDriver: {wanted}"))


def _flags(machine: CheckedMachine) -> list[str]:
    """Arguments of the running kubelet; empty if none runs."""
    for process in machine.path("/proc").glob("[0-9]*"):
        if machine.text(f"/proc/{process.name}/comm").strip() == "kubelet":
            return machine.text(f"/proc/{process.name}/cmdline").split("\0")
    return []


def _merge(under: dict[str, Any], over: Mapping[str, Any] | None) -> None:
    for key, value in (over or {}).items():
        if isinstance(value, dict) and isinstance(under.get(key), dict):
            _merge(under[key], value)
        else:
            under[key] = value
