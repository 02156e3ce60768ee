"""The host under either toolstack: control groups, files, disk, clock, network, daemons."""

from __future__ import annotations

import os
import shlex
import socket
import stat
from pathlib import Path

from daemonkit import config
from daemonkit.faults import Fault
from hostsetup.doctor.doctor_settings import CriFolders, DoctorSettings
from hostsetup.doctor.machine import Check, CheckedMachine, failed, ok, unknown, warning
from protect.config import ProtectdConfig

_CONTROLLERS = ("cpu", "io", "memory", "pids")
_LEAST_FREE_BYTES = 1 << 20
"""Bytes below which the daemons create nothing."""
_LOW_PERCENT = 15
"""Percent below which the kubelet removes images."""
_PROBE_SECONDS = 5.0
_FORWARD = "/proc/sys/net/ipv4/ip_forward"
_LATER = "/etc/sysctl.d/90-xenpod.conf"
_ALL = 0o777
_TOOLS = {"tar2sqfs": "squashfs-tools-ng"}


def configuration(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    """Both configuration files are readable, and protectd.toml has valid values."""
    files = (
        ("protectd.toml", settings.protectd_file, ProtectdConfig, False),
        ("cri.toml", settings.cri_file, CriFolders, True),
    )
    for name, place, kind, others in files:
        file = machine.path(place)
        if not file.exists():
            yield failed(name, f"{file} is not there", f"mkdir -p {file.parent} && touch {file}")
            continue
        try:
            config.load_config(kind, file, unknown_keys=others)
        except Fault as fault:
            yield failed(name, str(fault), f"mv {file} {file}.broken && touch {file}  # the defaults")
        else:
            yield ok(name, "it can be read")


def permissions(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    """Only root can write the daemons' configuration, or read their state."""
    places = (
        (settings.protectd_file, 0o022),
        (settings.cri_file, 0o022),
        (settings.protectd.state_dir, 0o077),
        (settings.cri.state_dir, 0o022),
    )
    for place, forbidden in places:
        found = machine.path(place)
        try:
            status = found.stat()
        except FileNotFoundError:
            continue  # a daemon makes its own folders; files are checked above
        mode, name = stat.S_IMODE(status.st_mode), f"permissions of {place}"
        quoted = shlex.quote(str(found))
        if status.st_uid != machine.owner:
            yield failed(name, f"user {status.st_uid} owns it", f"chown root:root {quoted}")
        elif mode & forbidden:
            fix = f"chmod {mode & ~forbidden & _ALL:o} {quoted}"
            yield failed(name, f"mode {mode:o} lets others in", fix)
        else:
            yield ok(name, f"root's, mode {mode:o}")


def control_groups(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    unified = machine.text("/sys/fs/cgroup/cgroup.controllers").split()
    first = machine.path("/sys/fs/cgroup/memory").is_dir()
    if not unified and not first:
        fix = f"mount -t cgroup2 cgroup2 {machine.path('/sys/fs/cgroup')}"
        yield failed("control groups", "none are mounted", fix)
        return
    missing = [name for name in _CONTROLLERS if name not in unified] if unified else []
    if missing:
        words = " ".join(missing)
        grub = machine.path("/etc/default/grub")
        fix = f"sed -i 's/cgroup_disable=[a-z,]*//' {grub} && update-grub && reboot"
        yield warning("control groups", f"the kernel has no controller {words}: limits are not held", fix)
    else:
        yield ok("control groups", "version 2" if unified else "version 1")


def disk(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    """Free space for state, images and scratch disks."""
    seen = set[int]()
    for place in (settings.protectd.state_dir, settings.cri.state_dir, settings.protectd.scratch_dir):
        found = machine.path(place)
        while not found.exists():
            found = found.parent
        device = found.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        total, free = machine.room(found)
        percent = 100 * free // max(1, total)
        says, name = f"{free >> 20} MiB are free, {percent}%", f"disk of {place}"
        if free < _LEAST_FREE_BYTES:
            yield failed(name, f"{says}: no pod can be created", "protect image prune --all")
        elif percent < _LOW_PERCENT:
            yield warning(
                name, f"{says}: below {_LOW_PERCENT}% images are removed", "protect image prune --all"
            )
        else:
            yield ok(name, says)


def clock(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    """Zones have the host's time."""
    said = machine.says("timedatectl", "show", "--property=NTPSynchronized", "--value")
    if said is None:
        yield unknown("clock", "timedatectl does not say whether it is synchronized")
    elif said == "yes":
        yield ok("clock", "it is synchronized")
    else:
        fix = "apt-get install --yes chrony && systemctl enable --now chrony.service"
        yield warning("clock", "it is not synchronized, and zones have the host's time", fix)


def forwarding(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    """Frames of pods leave the host by its own routes."""
    if machine.text(_FORWARD).strip() == "1":
        yield ok("ip_forward", "packets of pods are forwarded")
        return
    later = f"echo net.ipv4.ip_forward=1 >>{machine.path(_LATER)}"
    fix = f"echo 1 >{machine.path(_FORWARD)} && {later}"
    yield warning("ip_forward", "the host forwards no packets: pods reach nothing beyond it", fix)


def tools(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    """Programs that build images, and the parts of the guest."""
    for program, package in _TOOLS.items():
        if machine.which(program):
            yield ok(program, "it is installed")
        else:
            yield failed(program, "it is not installed", f"apt-get install --yes {package}")
    guest = machine.path(settings.protectd.guest_dir)
    for name, part in (("the agent", "root/init"), ("crun", "root/usr/bin/crun"), ("the lookup", "lookup")):
        file = guest / part
        check = f"guest parts: {name}"
        if os.access(file, os.X_OK):
            yield ok(check, f"{file} is there")
        elif file.exists():
            yield failed(check, f"{file} cannot be run", f"chmod 755 {shlex.quote(str(file))}")
        else:
            fix = f"make zone && mkdir -p {guest} && cp -a zone/build/. {guest}/  # in the sources"
            yield failed(check, f"{file} is not there", fix)


def sockets(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    """Both daemons serve, and only root can ask them."""
    for unit, place in (("protectd", settings.protect_socket), ("xenpod-cri", settings.cri_socket)):
        yield from _socket(machine.path(place), unit, machine.owner)


def _socket(path: Path, unit: str, owner: int) -> Check:
    try:
        status = path.stat()
    except FileNotFoundError:
        yield failed(unit, f"{path} is not there: it does not run", f"systemctl start {unit}.service")
        return
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != owner or mode & 0o077:
        says = f"{path} is of user {status.st_uid}, mode {mode:o}: others can ask it"
        quoted = shlex.quote(str(path))
        yield failed(unit, says, f"chown root:root {quoted} && chmod 600 {quoted}")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except OSError as error:
            says = f"{path} does not answer: {error.strerror or error}"
            yield failed(unit, says, f"systemctl restart {unit}.service")
        else:
            yield ok(unit, f"it serves {path}")
