"""Xen and dom0: their versions, and the settings that the preflight checks."""

from __future__ import annotations

import shlex

from hostsetup.doctor.doctor_settings import DoctorSettings
from hostsetup.doctor.machine import Check, CheckedMachine, failed, ok, unknown, warning
from protect.model.capacity.host_resources import HostNotice

_MODULES = ("xen_gntdev", "xen_evtchn", "xen_blkback", "xen_netback")
_OLDEST = (4, 17)
_LATER = "/etc/modules-load.d/xenpod.conf"


def xen(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    """Whether this host is the dom0 of a supported Xen."""
    if machine.text("/sys/hypervisor/type").strip() != "xen":
        install = "apt-get install --yes xen-system-amd64 && reboot"
        yield failed("xen", "this machine has not booted under Xen", install)
        return
    version = machine.text("/sys/hypervisor/version/major"), machine.text("/sys/hypervisor/version/minor")
    said = ".".join(part.strip() for part in version)
    numbers = tuple(int(part) for part in said.split(".") if part.isdecimal())
    if numbers < _OLDEST:
        update = "apt-get install --yes xen-system-amd64 && reboot"
        yield failed("xen", f"Xen {said} is older than 4.17", update)
        return
    yield ok("xen", f"Xen {said}")
    if "control_d" in machine.text("/proc/xen/capabilities"):
        yield ok("dom0", "this is the control domain")
    else:
        fix = f"mount -t xenfs xenfs {machine.path('/proc/xen')}"
        yield failed("dom0", "this is not seen to be the control domain: /proc/xen has no capabilities", fix)


def daemons(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    """xenstored, the registry of domains, and xenconsoled, the keeper of their console logs."""
    running = machine.processes()
    for name, others in (("xenstored", {"xenstored", "oxenstored"}), ("xenconsoled", {"xenconsoled"})):
        if running & others:
            yield ok(name, "it runs")
        else:
            yield failed(name, "it does not run", "systemctl restart xen.service")


def modules(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    """Drivers of dom0 for memory, events, disks and networks of zones; xenpod-libxl loads them at boot."""
    builtin = {
        line.rpartition("/")[2].partition(".")[0].replace("-", "_")
        for line in machine.text(f"/lib/modules/{machine.release}/modules.builtin").splitlines()
    }
    for name in _MODULES:
        if name in builtin or machine.path(f"/sys/module/{name}").is_dir():
            yield ok(f"module {name}", "it is there")
        else:
            fix = f"modprobe {name} && echo {name} >>{machine.path(_LATER)}"
            yield failed(f"module {name}", "it is not loaded", fix)


def preflight(machine: CheckedMachine, settings: DoctorSettings) -> Check:
    """Settings of Xen and dom0 that do not suit zones."""
    if settings.notices is None:
        yield unknown("settings of Xen", "neither protectd nor xl says what they are")
        return
    for notice in settings.notices:
        yield warning(notice.setting, notice.text, fix(machine, notice))
    if not settings.notices:
        yield ok("settings of Xen", "they are as zones need them")


def fix(machine: CheckedMachine, notice: HostNotice) -> str:
    """Commands that mend the subject of a notice."""
    if "GRUB_CMDLINE_XEN" in notice.place:
        file = machine.path("/etc/default/grub.d/xenpod.cfg")
        setting = f'GRUB_CMDLINE_XEN="$GRUB_CMDLINE_XEN {notice.setting}={notice.wanted}"'
        return f"echo {shlex.quote(setting)} >>{file} && update-grub && reboot"
    if notice.setting == "XENCONSOLED_ARGS":
        line = f'XENCONSOLED_ARGS="$XENCONSOLED_ARGS {notice.wanted}"'
        return f"echo {shlex.quote(line)} >>{machine.path(notice.place)} && systemctl restart xen.service"
    if notice.setting == "XENCONSOLED_TRACE":
        file = machine.path("/etc/default/xencommons")
        return f"echo XENCONSOLED_TRACE={notice.wanted} >>{file} && systemctl restart xenconsoled.service"
    if notice.setting == "XENDOMAINS_SAVE":
        return f"echo 'XENDOMAINS_SAVE=\"\"' >>{machine.path(notice.place)}"
    if notice.setting == "quota-maxentity":
        restart = "reboot"  # a restarted xenstored has lost all domains
        return f"echo 'quota-maxentity = {notice.wanted}' >>{machine.path(notice.place)} && {restart}"
    if notice.setting in ("--entry-nb", "-E"):
        line = f'XENSTORED_ARGS="$XENSTORED_ARGS {notice.setting} {notice.wanted}"'
        return f"echo {shlex.quote(line)} >>{machine.path('/etc/default/xen')} && reboot"
    if notice.setting == "libxl.kernel":
        return "apt-get install --yes linux-image-amd64 && systemctl restart protectd.service"
    return f"# {notice.place}: set {notice.setting} to {notice.wanted}"
